"""What every registered part keeps to; a part without its entry fails."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.compute.formulas import multiply_adds
from tests.models.small_models import SMALL, filled, random_images, relative_error
from tests.variants import numpy_variants as plain
from vit.checkpoints.native import save_native
from vit.checkpoints.pretrained import load_pretrained
from vit.compute.flops import work
from vit.models.config import ViTConfig
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import build_model
from vit.variants.table import KINDS, POSITIONS


@dataclass(frozen=True)
class Entry:
    """What is true of a part."""

    reference: Callable[[dict[str, Any]], type[plain.Part]]
    """From options to the same in NumPy."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Another value of each option."""
    macs: Callable[[int, int, dict[str, Any]], int] = lambda n, d, options: 0
    """Multiply-adds in each layer, from the number of patches, the width and the options."""


def added(table: Callable[..., Any]) -> Callable[[dict[str, Any]], type[plain.Part]]:
    return lambda options: plain.added(table, options.get("where", "stem"))


EVERYWHERE = {"where": "layers", "size": (4, 4)}
ENTRIES = {
    "none": Entry(lambda options: plain.Part),
    "learned": Entry(added(plain.learned), EVERYWHERE),
    "learned2d": Entry(added(plain.learned2d), EVERYWHERE),
    "sinusoids": Entry(added(plain.sinusoids), {"where": "layers"}),
    "sincos2d": Entry(added(plain.sincos2d), {"where": "layers"}),
    "relative": Entry(
        lambda options: plain.Relative, {"size": (4, 4)}, lambda n, d, _: n * (2 * n - 1) * d
    ),
    "shaw": Entry(
        lambda options: plain.Shaw,
        {"k": 2},
        lambda n, d, options: 2 * n * (2 * options.get("k", 16) + 1) * d,
    ),
    "bias_table": Entry(lambda options: plain.BiasTable, {"size": (4, 4)}),
    "alibi": Entry(lambda options: plain.Alibi),
}
CASES = [
    *((name, {}) for name in ENTRIES),
    *((name, {option: v}) for name, e in ENTRIES.items() for option, v in e.changes.items()),
    ("learned", {"where": "shared"}),
    ("learned2d", {"where": "shared"}),
    ("shaw", {"k": 0}),
]
SIZE = (32, 48)  # 4 x 6 patches
FORMS: dict[str, dict[str, Any]] = {
    "patches": {"class_token": False},
    "prefix": {"num_registers": 2},
    "square": {"image_size": 32},
}


def built(name: str, options: dict[str, Any], form: str = "prefix", **more: Any) -> Any:
    """A small model with this part, in evaluation mode with random weights everywhere."""
    sizes: dict[str, Any] = {**SMALL, "depth": 2, "image_size": SIZE, "pool": "gap"}
    variant = {"positions": {"name": name, **options}}
    return filled(build_model(ViTConfig(**{**sizes, **FORMS[form], **more}, variant=variant)))


def images_of(model: Any, count: int = 2, **kind: Any) -> torch.Tensor:
    return random_images(count, 3, *model.config.size, **kind)


def test_every_part_and_every_option_has_its_entry() -> None:
    assert set(KINDS) == {"positions"} and set(ENTRIES) == set(POSITIONS)
    for name, part in POSITIONS.items():
        assert set(ENTRIES[name].changes) == {entry.name for entry in fields(part.options)}, name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_outputs_are_those_of_the_equations_for_any_grid(
    name: str, options: dict[str, Any], form: str
) -> None:
    model = built(name, options, form).double()
    home = options.get("size", model.config.grid)
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    for size in (model.config.size, (48, 40)):
        images = random_images(2, 3, *size, dtype=torch.float64)
        part = ENTRIES[name].reference(options)
        expected = plain.forward(images.numpy(), weights, part, 8, 4, home)
        with torch.no_grad():
            ours = model(images).numpy()
        assert np.abs(ours - expected).max() < 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_image_alone_is_as_in_its_batch_and_all_parameters_learn(
    name: str, options: dict[str, Any]
) -> None:
    model = built(name, options)
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_operations_are_those_that_are_counted(
    name: str, options: dict[str, Any], form: str
) -> None:
    config = built(name, options, form).config
    macs = ENTRIES[name].macs(config.num_patches, config.width, options)
    if name == "relative" and "size" in options and form != "square":
        rows, columns = config.grid  # of another grid, all 2-D offsets are resampled
        macs = config.num_patches * (2 * rows - 1) * (2 * columns - 1) * config.width
    assert work(config).flops == 2 * (multiply_adds(config)[0] + config.depth * macs)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_saved_model_is_the_same_and_takes_other_sizes(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = built(name, options)
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    loaded, _ = load_pretrained(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded.eval()(images_of(model)), model(images_of(model)))
    larger, _ = load_pretrained(tmp_path, image_size=(48, 40))
    assert larger.config.grid == (6, 5)
    more = random_images(2, 3, 48, 40)
    assert relative_error(larger.eval()(more), model(more)) < 1e-6
    kept = {key for key in model.state_dict() if key.endswith("_table")}
    assert kept == model.no_weight_decay() - {"cls_token", "reg_token"}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [(name, option, v) for name, e in ENTRIES.items() for option, v in e.changes.items()],
)
def test_every_option_changes_the_result(name: str, option: str, value: Any) -> None:
    model, other = built(name, {}), built(name, {option: value})
    assert model.config.variant != other.config.variant
    images = images_of(model)
    assert relative_error(other(images), model(images)) > 1e-3


@pytest.mark.parametrize(("name", "options"), CASES)
def test_without_positions_and_only_then_the_order_of_patches_is_nothing(
    name: str, options: dict[str, Any]
) -> None:
    model: VisionTransformer = built(name, options, "patches").double()
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
    assert {key.split()[0] for key in errors} == set(POSITIONS) and len(errors) == 3 * len(
        POSITIONS
    )
    assert max(errors.values()) < 1e-5, errors
