"""What every registered part keeps to; a part without its entry fails."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.extensions.compute.formulas import multiply_adds
from tests.extensions.variants import numpy_variants as plain
from tests.extensions.variants.entries import Entry
from tests.extensions.variants.mixer_entries import MIXERS
from tests.extensions.variants.modification_entries import MODIFICATIONS
from tests.extensions.variants.numpy_modifications import FUNCTIONS, GATES
from tests.extensions.variants.numpy_stem import STEMS
from tests.models.small_models import SMALL, filled, random_images, relative_error
from vit.extensions.compute.candidate import from_config
from vit.extensions.variants.table import KINDS
from vit.models.config import ViTConfig
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import build_model
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained


def added(table: Callable[..., Any]) -> Callable[[dict[str, Any]], type[plain.Part]]:
    return lambda options: plain.added(table, options.get("where", "stem"))


EVERYWHERE = {"where": "layers", "size": (4, 4)}
ENTRIES = {
    ("positions", "none"): Entry(lambda options: plain.Part),
    ("positions", "learned"): Entry(added(plain.learned), EVERYWHERE),
    ("positions", "learned2d"): Entry(added(plain.learned2d), EVERYWHERE),
    ("positions", "sinusoids"): Entry(added(plain.sinusoids), {"where": "layers"}),
    ("positions", "sincos2d"): Entry(added(plain.sincos2d), {"where": "layers"}),
    ("positions", "relative"): Entry(
        lambda options: plain.Relative,
        {"size": (4, 4)},
        lambda config, _: (
            config.depth * config.num_patches * relative_offsets(config) * config.width
        ),
    ),
    ("positions", "shaw"): Entry(
        lambda options: plain.Shaw,
        {"k": 2},
        lambda config, options: (
            config.depth * 2 * config.num_patches * (2 * options.get("k", 16) + 1) * config.width
        ),
    ),
    ("positions", "bias_table"): Entry(lambda options: plain.BiasTable, {"size": (4, 4)}),
    ("positions", "alibi"): Entry(lambda options: plain.Alibi),
    **MIXERS,
    **MODIFICATIONS,
    **STEMS,
}
Case = tuple[str, str, dict[str, Any]]
CASES: list[Case] = [
    *((*key, {}) for key in ENTRIES),
    *((*key, {option: v}) for key, e in ENTRIES.items() for option, v in e.changes.items()),
    ("positions", "learned", {"where": "shared"}),
    ("positions", "learned2d", {"where": "shared"}),
    ("positions", "shaw", {"k": 0}),
    ("stem", "convolutions", {"widths": [16, 16, 32]}),
]
# Feed-forwards that differ from others in a function alone.
OF_ANOTHER = {*[*FUNCTIONS][1:], *[*GATES][1:]}


def each(cases: list[Case]) -> Any:
    names = [" ".join([*words, *map(str, options.values())]) for *words, options in cases]
    return pytest.mark.parametrize(("kind", "name", "options"), cases, ids=names)


each_case = each(CASES)
each_code = each([case for case in CASES if case[0] != "mlp" or case[1] not in OF_ANOTHER])


def relative_offsets(config: ViTConfig) -> int:
    """Offsets that have a score with each query: in raster order, or of another grid, in 2-D."""
    rows, columns = config.grid
    home = tuple(config.variant["positions"]["size"]) == config.grid
    return 2 * rows * columns - 1 if home else (2 * rows - 1) * (2 * columns - 1)


SIZE = (32, 48)  # 4 x 6 patches
FORMS: dict[str, dict[str, Any]] = {
    "patches": {"class_token": False},
    "prefix": {"num_registers": 2},
}


def built(kind: str, name: str, options: dict[str, Any], form: str = "prefix", **more: Any) -> Any:
    """A small model with this part, in evaluation mode with random weights everywhere."""
    sizes: dict[str, Any] = {**SMALL, "depth": 2, "image_size": SIZE, "pool": "gap"}
    fields = {**sizes, **FORMS[form], **more}
    part = {"name": name, **ENTRIES[kind, name].options, **options}
    model = filled(build_model(ViTConfig(**fields, variant={kind: part})))
    if model.pos_embed is not None and model.config.class_token:  # the reference has no such slot
        with torch.no_grad():
            model.pos_embed[:, 0] = 0
    return model


def images_of(model: Any, count: int = 2, **kind: Any) -> torch.Tensor:
    return random_images(count, 3, *model.config.size, **kind)


def test_every_part_and_every_option_has_its_entry() -> None:
    assert set(ENTRIES) == {(kind, name) for kind, table in KINDS.items() for name in table}
    for (kind, name), entry in ENTRIES.items():
        options = {option.name for option in fields(KINDS[kind][name].options)}
        fixed = set() if entry.other else {"size"}
        assert set(entry.changes) == options - fixed, (kind, name)


@pytest.mark.parametrize("form", FORMS)
@each_case
def test_outputs_are_those_of_the_equations_for_any_grid(
    kind: str, name: str, options: dict[str, Any], form: str
) -> None:
    entry, model = ENTRIES[kind, name], built(kind, name, options, form).double()
    full, home = model.config.variant[kind], model.config.grid
    if kind == "positions":
        home = tuple(full.get("size", home))
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    for size in filter(None, (model.config.size, entry.other)):
        images = random_images(2, 3, *size, dtype=torch.float64)
        part = entry.reference(full)
        expected = plain.forward(images.numpy(), weights, part, 8, 4, home)
        with torch.no_grad():
            ours = model(images).numpy()
        assert np.abs(ours - expected).max() < 1e-10 * np.abs(expected).max()


@each_code
def test_an_image_alone_is_as_in_its_batch_and_all_parameters_learn(
    kind: str, name: str, options: dict[str, Any]
) -> None:
    model = built(kind, name, options)
    images = images_of(model, 3, dtype=torch.float64)
    together = model.double()(images)
    alone = torch.cat([model(image[None]) for image in images])
    assert relative_error(alone, together) < 1e-12
    together.square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    first = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    model.set_grad_checkpointing(True)
    model(images).square().sum().backward()
    assert torch.equal(torch.cat([p.grad.flatten() for p in model.parameters()]), first)


@each_code
def test_operations_are_those_that_are_counted(
    kind: str, name: str, options: dict[str, Any]
) -> None:
    config = built(kind, name, options, image_size=32).config
    more = ENTRIES[kind, name].macs(config, config.variant[kind])
    assert from_config(name, config).work.flops == 2 * (multiply_adds(config)[0] + more)


@pytest.mark.parametrize(("kind", "name"), [key for key in ENTRIES if key[0] != "mlp"])
def test_bfloat16_is_near(kind: str, name: str) -> None:
    model = built(kind, name, {})
    images = images_of(model)
    exact = model.double()(images.double())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model.float()(images)
    mixed.float().square().sum().backward()
    assert relative_error(mixed, exact) < 0.06


@each_code
def test_a_saved_model_is_the_same_and_takes_other_sizes(
    kind: str, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = built(kind, name, options)
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    loaded, _ = load_pretrained(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded.eval()(images_of(model)), model(images_of(model)))
    size = ENTRIES[kind, name].other
    if size is not None:
        larger, _ = load_pretrained(tmp_path, image_size=size)
        assert larger.config.size == size
        more = random_images(2, 3, *size)
        assert relative_error(larger.eval()(more), model(more)) < 1e-6
    kept = {key for key in model.state_dict() if key.endswith("_table")}
    assert kept == model.no_weight_decay() - {"cls_token", "reg_token", "pos_embed"}


@pytest.mark.parametrize(
    ("kind", "name", "option", "value"),
    [(*key, option, v) for key, e in ENTRIES.items() for option, v in e.changes.items()],
)
def test_every_option_changes_the_result(kind: str, name: str, option: str, value: Any) -> None:
    model, other = built(kind, name, {}), built(kind, name, {option: value})
    assert model.config.variant != other.config.variant
    images = images_of(model)
    assert relative_error(other(images), model(images)) > 1e-3


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for kind, name, options in CASES if kind == "positions"]
)
def test_without_positions_and_only_then_the_order_of_patches_is_nothing(
    name: str, options: dict[str, Any]
) -> None:
    model: VisionTransformer = built("positions", name, options, "patches").double()
    patches, grid = model.embed(images_of(model, dtype=torch.float64))
    order = torch.randperm(patches.shape[1], generator=torch.Generator().manual_seed(0))
    tokens, permuted = model.encode(patches, grid), model.encode(patches[:, order], grid)
    moved = relative_error(permuted, tokens[:, order])
    pooled = relative_error(model.pool(permuted), model.pool(tokens))
    if name == "none" or options.get("k") == 0:  # one distance
        assert moved < 1e-6 and pooled < 1e-6
    else:
        assert moved > 1e-3 and pooled > 1e-4


def test_every_part_compiles_whole_and_is_exported() -> None:
    script = Path(__file__).with_name("traced_parts.py")
    path = os.pathsep.join([str(script.parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    traced = {tuple(part.split("=")) for key in errors for part in key.split() if "=" in part}
    assert traced == ENTRIES.keys() - {("mixer", "rnn"), ("mixer", "gru")}  # code of lstm
    immobile = [entry for entry in ENTRIES.values() if entry.other is None]
    assert sum(key.endswith(" compile") for key in errors) == len(immobile)
    assert max(errors.values()) < 1e-5, errors
