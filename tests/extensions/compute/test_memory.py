"""Counted activations against those that real training keeps on a CPU."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.extensions.compute.conftest import shallow_candidate
from vit.extensions.compute.candidate import Candidate, find_model, from_config
from vit.extensions.compute.devices import held
from vit.extensions.compute.memory import GIB, WORKSPACE, Activations
from vit.extensions.compute.timing import training_loss
from vit.models import attention
from vit.models.zoo import model_config


def like_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast with LayerNorm and GroupNorm in float32, and fused attention."""

    def in_float32(norm, x, *args, **options):
        with torch.autocast("cpu", enabled=False):
            return norm(x.float(), *args, **options)

    for name in ("layer_norm", "group_norm"):
        monkeypatch.setattr(F, name, partial(in_float32, getattr(F, name)))
    monkeypatch.setattr(attention, "PRODUCT_TOKENS", 0)


def kept_by_training(model: Candidate, precision: str, *, checkpointing: bool = False) -> int:
    """Bytes per image that autograd keeps of a real forward pass and loss."""
    network = model.build().train()
    network.activation_checkpointing = checkpointing  # pyright: ignore[reportArgumentType]
    parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
    totals = []
    for batch in (2, 4):
        storages = {}

        def pack(tensor: torch.Tensor, storages: dict = storages) -> torch.Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage  # alive, so that addresses differ
            return tensor

        images = torch.zeros(batch, model.channels, *model.image_size)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            training_loss(network, images, precision)
        totals.append(sum(s.nbytes() for at, s in storages.items() if at not in parameters))
    return (totals[1] - totals[0]) // 2


CASES = [
    ("vit_ti16", {}),
    ("vit_ti16", {"dropout": 0.1}),
    ("vit_ti16", {"layer_scale": 1e-4, "pool": "gap"}),
    ("vit_ti16", {"pool": "map", "activation": "swiglu"}),
    ("vit_ti16", {"pool": "cls_gap", "representation_size": 64, "in_channels": 1}),
    ("vit_ti16", {"pos_embed": "none", "rotary": {}}),
    ("r_vit_ti16", {}),
    ("r26_vit_s32", {"stem_depths": (1, 2), "patch_size": 8, "image_size": (64, 48)}),
    ("bit_r50x1", {"image_size": (75, 50)}),
]


@pytest.mark.parametrize(
    ("name", "changes", "precision"),
    [*((*case, "bf16") for case in CASES), *((*case, "fp32") for case in CASES[:7:3])],
)
def test_counted_activations_are_those_that_are_kept(
    name: str, changes: dict, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropout(x, p, training, inplace):  # CUDA's mask has one byte per element
        return torch.native_dropout(x, p, True)[0] if p else x

    monkeypatch.setattr(F, "dropout", dropout)
    model = shallow_candidate(name, **{"image_size": (64, 96), **changes})
    counts = [model.activations(precision, checkpointing=c) for c in (False, True)]
    if precision == "bf16":
        like_cuda(monkeypatch)
    for checkpointing, count in enumerate(counts):
        assert count is not None
        assert count.saved == kept_by_training(model, precision, checkpointing=bool(checkpointing))


def test_a_cpu_in_bfloat16_keeps_the_weights_of_attention_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = shallow_candidate("vit_ti16", (64, 96))  # 25 tokens, 3 heads
    weights = kept_by_training(model, "bf16")
    monkeypatch.setattr(attention, "PRODUCT_TOKENS", 0)
    assert weights - kept_by_training(model, "bf16") == 3 * 25 * (2 * 25 - 4)


def test_checkpointing_adds_the_largest_unit_to_the_saved_activations() -> None:
    model = from_config("vit_b16", model_config("vit_b16", depth=2))
    whole, frugal = (model.activations("fp32", checkpointing=c) for c in (False, True))
    assert whole is not None and frugal is not None
    layer = 197 * (8 * 768 + 2 * 3072 + 12 + 4) * 4  # inputs of norms, products, GELU; statistics
    assert frugal.recomputed == layer
    assert whole.saved - frugal.saved == 2 * (layer - 197 * 768 * 4)
    assert (whole.per_image, frugal.per_image) == (whole.saved, frugal.saved + layer)


def test_a_model_of_torchvision_keeps_what_ours_keeps() -> None:
    theirs, ours = (find_model(name, (64, 64)) for name in ("torchvision/vit_b_32", "vit_b32"))
    kept, expected = (model.activations("fp32") for model in (theirs, ours))
    assert kept is not None and expected is not None
    assert kept.saved == pytest.approx(expected.saved, rel=0.02)
    assert theirs.activations("fp32", checkpointing=True) is None


@pytest.mark.parametrize(("precision", "bytes_per_weight"), [("fp32", 16), ("bf16", 18)])
def test_the_largest_batch_fills_the_memory(precision: str, bytes_per_weight: int) -> None:
    kept, network = (
        Activations(saved=50_000_000, recomputed=14_000_000),
        find_model("vit_b16").empty(),
    )
    rest = sum(held(network, precision, None, 1).values())
    room = 24 * GIB * (1 - WORKSPACE) - bytes_per_weight * 86_567_656
    assert kept.largest_batch(24 * GIB, rest) == room // 64_000_000
    assert kept.largest_batch(GIB, rest) == 0
