"""Predicted activations against those that autograd keeps."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.compute.conftest import shallow_candidate
from vit.compute.candidate import Candidate, candidate
from vit.compute.memory import (
    GIB,
    WORKSPACE,
    TrainingMemory,
    activations,
    counted_activations,
    kept_bytes,
    largest,
    measured_activations,
    measured_peak,
)
from vit.compute.steps import training_loss
from vit.models import attention

TOLERANCE = 0.005


def autocast_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """LayerNorm and GroupNorm in float32 within autocast, and fused attention."""

    def in_float32(norm):
        def run(x, *args, **options):
            with torch.autocast("cpu", enabled=False):
                return norm(x.float(), *args, **options)

        return run

    for name in ("layer_norm", "group_norm"):
        monkeypatch.setattr(F, name, in_float32(getattr(F, name)))
    monkeypatch.setattr(attention, "PRODUCT_TOKENS", 0)


def seen(model: Candidate, precision: str, *, checkpointing: bool) -> tuple[int, int]:
    """(bytes per image, constant bytes) that autograd keeps, from two batch sizes."""
    with torch.device("meta"):
        network = model.build()
    network.activation_checkpointing = checkpointing
    network = network.to_empty(device="cpu").train()  # for any weights
    kept = [
        kept_bytes(
            partial(training_loss, network, torch.zeros(b, 3, *model.image_size), precision),
            network,
        )
        for b in (2, 4)
    ]
    per_image = (kept[1] - kept[0]) // 2
    return per_image, kept[0] - 2 * per_image


MIXED = {"coordinates": "index", "pairing": "neighbours", "learned": True}
CASES = [
    ("vit_ti16", {}),
    ("vit_ti16", {"dropout": 0.1}),
    ("vit_ti16", {"layer_scale": 1e-4, "pool": "gap"}),
    ("vit_ti16", {"pool": "map", "activation": "swiglu"}),
    ("vit_ti16", {"pool": "cls_gap", "representation_size": 64}),
    ("r_vit_ti16", {"image_size": (64, 96)}),
    ("vit_ti16", {"pos_embed": "none", "rotary": {}}),
    ("vit_ti16", {"rotary": MIXED}),
    ("r26_vit_s32", {"stem_depths": (1, 2), "patch_size": 8, "image_size": (64, 48)}),
    ("bit_r50x1", {"image_size": (64, 96)}),
    ("bit_r50x2", {"image_size": (75, 50)}),
]


@pytest.mark.parametrize(
    ("name", "changes", "precision"),
    [(*case, precision) for case in CASES for precision in ("fp32", "bf16")]
    + [(*case, "bf16-cpu") for case in [*CASES[::3], CASES[7]]]
    + [("vit_ti16", {"image_size": (528, 528)}, "bf16-cpu")],
)
def test_predicted_activations_are_those_that_are_kept(
    name: str, changes: dict, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(  # the mask of CUDA's dropout, one byte per element
        F,
        "dropout",
        lambda x, p, training, inplace: torch.native_dropout(x, p, True)[0] if p else x,
    )
    if precision == "bf16":
        autocast_of_cuda(monkeypatch)
    model = shallow_candidate(name, **{"image_size": (128, 160), **changes})
    for checkpointing in (False, True):
        predicted = activations(model.config, precision, checkpointing=checkpointing)
        per_image, once = seen(model, precision, checkpointing=checkpointing)
        assert predicted.kept == pytest.approx(per_image, rel=TOLERANCE)
        if precision == "fp32":
            assert predicted.once == pytest.approx(once, rel=TOLERANCE, abs=200_000)


def test_fake_tensors_keep_what_real_ones_keep() -> None:
    model = shallow_candidate("vit_ti16", image_size=(64, 64))
    with torch.device("meta"):
        found = counted_activations(model.build(), model.image_size, "fp32")
    assert found.kept == seen(model, "fp32", checkpointing=False)[0]


def test_checkpointing_adds_the_largest_unit_to_the_saved_activations() -> None:
    model = candidate("vit_b16")
    whole, frugal = (activations(model.config, "fp32", checkpointing=c) for c in (False, True))
    layer = 197 * (8 * 768 + 2 * 3072 + 12 + 4) * 4  # inputs of norms, products, GELU; statistics
    assert frugal.recomputed == layer
    assert whole.kept - frugal.kept == 12 * (layer - 197 * 768 * 4)


def test_a_model_without_formula_is_counted() -> None:
    model = candidate("torchvision/vit_b_32")
    ours = activations(candidate("vit_b32").config, "fp32")
    found = model.memory("fp32")
    assert found is not None
    assert found.activations.kept == pytest.approx(ours.kept, rel=0.02)
    assert model.memory("fp32", checkpointing=True) is None


def test_mixed_precision_of_a_counted_model_is_about_half() -> None:
    with torch.device("meta"):
        network = candidate("torchvision/resnet18").build()
    full, mixed = (counted_activations(network, (64, 64), p).kept for p in ("fp32", "bf16"))
    assert 0.45 < mixed / full < 0.6


def test_the_largest_batch_fills_the_memory() -> None:
    memory = candidate("vit_b16").memory("bf16")
    assert memory is not None
    assert memory.fixed == 86_567_656 * (4 + 4 + 8 + 2)
    batch = memory.largest_batch(24 * GIB)
    room = 24 * GIB * (1 - WORKSPACE)
    assert memory.total(batch) <= room < memory.total(batch + 1)
    assert memory.largest_batch(GIB) == 0


def test_full_precision_needs_no_copies_of_the_weights() -> None:
    kept = activations(candidate("vit_b16").config, "fp32")
    memory = TrainingMemory(params=1000, precision="fp32", activations=kept)
    assert memory.fixed == 16_000


@pytest.mark.parametrize("start", [1, 50, 100, 101, 1000])
@pytest.mark.parametrize("most", [0, 1, 7, 100])
def test_the_largest_batch_is_found_from_any_prediction(start: int, most: int) -> None:
    tried = []

    def fits(batch_size: int) -> bool:
        tried.append(batch_size)
        return batch_size <= most

    found = largest(fits, start)
    assert found <= most <= found + max(1, found // 32)
    assert len(tried) < 25


def test_what_is_kept_is_measured_per_image() -> None:
    model = shallow_candidate("vit_ti16", (64, 64))
    assert model.config is not None
    for batch_size in (1, 3):
        kept = measured_activations(model.build(), torch.randn(batch_size, 3, 64, 64), "fp32")
        assert kept == pytest.approx(activations(model.config, "fp32").kept, rel=0.005)


def test_a_cpu_has_no_peak_and_runs_no_step_for_it() -> None:
    model = shallow_candidate("vit_ti16", (64, 64)).build()
    step = lambda: pytest.fail("a step was run")  # noqa: E731
    assert measured_peak(step, model, torch.device("cpu")) is None
