"""Exports every part, and compiles it: for a grid that is not that of its tables, if it takes one.

The last line printed is {parts and way: relative error} as JSON.

A script, because the shape checks of the test run cannot be traced. A model has parts of several
kinds, as most of the time is spent on what all models have.
"""

import json
from typing import Any

import torch

from tests.extensions.variants.test_contract import ENTRIES
from tests.models.small_models import SMALL, filled, random_images, relative_error
from vit.extensions.variants.table import KINDS
from vit.models.config import ViTConfig
from vit.models.zoo import build_model

OF_SCORES = ("relative", "shaw", "bias_table", "alibi")
"""Positions that only the paper's attention has."""
OF_LSTM = ("rnn", "gru")
"""Mixers of the code that "lstm" is traced for."""


def together() -> list[dict[str, str]]:
    """Parts by kind, of a model each: together they are all that there are, but for OF_LSTM."""
    names = {kind: [*table] for kind, table in KINDS.items()}
    stems = [name for name in names["positions"] if name not in OF_SCORES]
    models = [{"mixer": name} for name in names["mixer"] if name not in OF_LSTM]
    models += [{"stack": name} for name in names["stack"]]
    assert len(models) >= len(names["mlp"])
    for model, name in zip(models, names["mlp"][::-1], strict=False):
        model["mlp"] = name
    moving = [model for model in models if ENTRIES["mixer", model.get("mixer", "softmax")].other]
    # Fixup, the last one, has no other mixer.
    fitting = {"positions": (moving, stems), "norm": (models, names["norm"])}
    fitting["stem"] = (models, names["stem"])
    fitting["residual"] = ([models[-1], *models], names["residual"][::-1])
    for kind, (chosen, parts) in fitting.items():
        for model, name in zip(chosen, parts, strict=False):
            model[kind] = name
    return [*models, *({"positions": name} for name in OF_SCORES)]


def measured(parts: dict[str, str]) -> dict[str, float]:
    """Errors of a model of one layer, or of a stack of two, that has these parts."""
    entries = {kind: ENTRIES[kind, name] for kind, name in parts.items()}
    variant = {kind: {"name": name, **entries[kind].options} for kind, name in parts.items()}
    fields: dict[str, Any] = {**SMALL, "num_registers": 1, "depth": 1 + ("stack" in parts)}
    model = filled(build_model(ViTConfig(**fields, variant=variant)))
    small, large = random_images(2, 3, 32, 32), random_images(2, 3, 48, 32)
    moves = all(entry.other for entry in entries.values())
    way, images = ("other grid", large) if moves else ("compile", small)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    exported = torch.export.export(model, (small,)).module()
    words = " ".join(f"{kind}={name}" for kind, name in parts.items())
    return {
        f"{words} {way}": relative_error(compiled(images), model(images)),
        f"{words} export": relative_error(exported(small), model(small)),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    errors: dict[str, float] = {}
    for parts in together():
        errors |= measured(parts)
        torch._dynamo.reset()  # graphs of other models count against a limit
    print(json.dumps(errors))
