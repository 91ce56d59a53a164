"""Counting what a run needs, without building it."""

import pytest
from jsonargparse import Namespace

from vit.checkpoints.building import build_empty
from vit.cli.batch_memory import step_memory
from vit.cli.memory_check import check_memory, count_parameters
from vit.compute.memory import GIB
from vit.data.preprocess import InputFormat
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.models.zoo import model_config

MODELS = [
    ("vit_b16", {}),
    ("vit_ti16", {"pos_embed": "none", "depth": 3, "image_size": (32, 64)}),
    ("vit_ti16", {"num_registers": 4, "activation": "swiglu", "layer_scale": 0.1}),
    ("vit_s16", {"pool": "map", "class_token": False, "representation_size": 9}),
    ("vit_ti16", {"distillation_token": True, "depth": 2}),
    ("vit_ti16", {"pos_embed": "sincos2d", "depth": 2, "image_size": (32, 48)}),
    ("r50_vit_b16", {}),
    ("r26_vit_s32", {"depth": 1}),
    ("bit_r50x1", {}),
    ("bit_r101x1", {"width_factor": 2, "depths": (2, 3, 1)}),
]


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_parameters_are_counted_as_the_built_model_has_them(name: str, options: dict) -> None:
    config = model_config(name, **options)
    model = build_empty(config)
    held = sum(p.numel() for p in model.parameters())
    computed = getattr(model, "fixed_positions", None)
    assert count_parameters(config) == held + (0 if computed is None else computed.numel())


def run(**data: object) -> Namespace:
    images = {"batch_size": 2, "global_batch": None}
    options = {**images, "augment": TrainTransform(), "inputs": InputFormat(), **data}
    return Namespace(data=Namespace(**options), trainer=Namespace(accumulate_grad_batches=3))


def test_a_count_without_end_is_answered_at_once() -> None:
    for options in ({"depth": 10**12}, {"image_size": 16 * 10**9}, {"width": 3 * 10**30}):
        config = model_config("r50_vit_b16", **{"num_heads": 3, "width": 48, **options})
        with pytest.raises(UserError, match="GiB are free"):
            check_memory(run(), config, on_cpu=True)


def test_what_fits_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_config("vit_ti16", num_classes=1)
    weights = 4 * count_parameters(config)
    assert weights > 2**24
    monkeypatch.setattr("vit.cli.memory_check.available_memory", lambda: weights + 2**23)
    check_memory(run(), config, on_cpu=True)
    with pytest.raises(UserError, match="batches of 64 images"):
        check_memory(run(batch_size=64), config, on_cpu=True)
    check_memory(run(batch_size=40), config, on_cpu=False)  # only bytes are in this memory
    with pytest.raises(UserError):
        check_memory(run(inputs=InputFormat(crop_fraction=0.001)), config, on_cpu=False)
    augment = TrainTransform(crop="resize_random", resize_size=10_000)
    with pytest.raises(UserError, match="a smaller crop or resize") as raised:
        check_memory(run(augment=augment), config, on_cpu=False)
    assert "batch_size" not in str(raised.value)  # every batch would be too much


def test_a_batch_that_fits_is_named_where_one_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_config("vit_ti16", num_classes=1)
    step = step_memory(config, "32-true", trained=count_parameters(config), on_cpu=True)
    monkeypatch.setattr("vit.cli.memory_check.available_memory", lambda: GIB)
    most = step.largest_batch(GIB)
    assert 0 < most < 4096
    named = 2 ** (most.bit_length() - 1)  # the largest divisor of 4096 that is not above it
    with pytest.raises(UserError) as raised:
        check_memory(run(batch_size=4096), config, on_cpu=True)
    assert (
        f"--data.batch_size {named} --trainer.accumulate_grad_batches {3 * 4096 // named} fits, "
        "with the same images per step"
    ) in str(raised.value)
    with pytest.raises(UserError, match=rf"\(--data.batch_size {named} fits"):
        check_memory(run(batch_size=4096, global_batch=8192), config, on_cpu=True)
