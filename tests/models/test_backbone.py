"""Uses of a backbone, for a ViT, a hybrid and a BiT."""

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.small_models import (
    BACKBONES,
    random_images,
    relative_error,
    small_bit,
    small_vit,
)
from tests.models.test_resnet import timm_twin as timm_resnet
from tests.models.test_vision_transformer import timm_twin as timm_vit
from vit.errors import UserError
from vit.models.backbone import layer_indices

IMAGES = (2, 3, 64, 64)
every_backbone = pytest.mark.parametrize("build", BACKBONES.values(), ids=BACKBONES)
Build = Callable[..., Any]


@every_backbone
def test_last_map_is_the_features_in_two_dimensions(build: Build) -> None:
    model, images = build(), random_images(2, 3, 64, 32)
    [last] = model.intermediate_layers(images)
    prefix = getattr(model, "num_prefix_tokens", 0)
    patches = model.features(images)[:, prefix:]
    rows, columns = 64 // model.patch_size, 32 // model.patch_size
    assert last.shape == (2, model.layer_channels[-1], rows, columns)
    assert torch.equal(last.flatten(2).transpose(1, 2), patches)
    first = model.intermediate_layers(images, [0])[0]
    strides = (64 // model.layer_strides[0], 32 // model.layer_strides[0])
    assert first.shape[1:] == (model.layer_channels[0], *strides)
    [flat] = model.intermediate_layers(images, reshape=False)
    assert torch.equal(flat, patches)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("layers", [2, [0, 2], [-1, 0]])
def test_vit_layers_equal_timms(norm: bool, layers: Any) -> None:
    fields = {"num_registers": 2, "pos_embed_class_slot": False}
    model = small_vit(**fields, image_size=(32, 48)).double()
    twin: Any = timm_vit(model, reg_tokens=2, no_embed_class=True)
    images = random_images(2, 3, 32, 48, dtype=torch.float64)
    ours = model.intermediate_layers(images, layers, norm=norm, return_cls=True)
    wanted = [1, 2] if layers == 2 else [i % 3 for i in layers]
    theirs = {
        i: twin.forward_intermediates(
            images, [i], norm=norm, intermediates_only=True, return_prefix_tokens=True
        )[0]
        for i in wanted
    }
    for (maps, cls), i in zip(ours, wanted, strict=True):
        assert relative_error(maps, theirs[i][0]) < 1e-12
        assert relative_error(cls, theirs[i][1][:, 0]) < 1e-12
    [last] = twin.get_intermediate_layers(images, n=1, reshape=True, norm=norm)
    [ours_last] = model.intermediate_layers(images, 1, norm=norm)
    assert relative_error(ours_last, last) < 1e-12


@pytest.mark.parametrize("norm", [True, False])
def test_bit_layers_equal_timms(norm: bool) -> None:
    model = small_bit(ws_mode="timm").double()
    twin: Any = timm_resnet(model)
    images = random_images(2, 3, 64, 96, dtype=torch.float64)
    theirs = twin.forward_intermediates(images, norm=norm, intermediates_only=True)[1:]
    for a, b in zip(model.intermediate_layers(images, 3, norm=norm), theirs, strict=True):
        assert relative_error(a, b) < 1e-12
    third, first = model.intermediate_layers(images, [2, 0], norm=norm)
    assert relative_error(third, theirs[2]) < 1e-12 and relative_error(first, theirs[0]) < 1e-12


def test_layers_after_the_last_requested_one_do_not_run() -> None:
    model = small_vit()
    model.blocks[2].register_forward_hook(lambda *_: pytest.fail("the last layer ran"))
    assert len(model.intermediate_layers(random_images(1, 3, 32, 32), [0, 1])) == 2


@pytest.mark.parametrize("layers", [0, 4, -1, [], [3], [-4]])
def test_layers_that_do_not_exist_are_refused(layers: Any) -> None:
    with pytest.raises(UserError, match="is outside the 3 layers of this model"):
        layer_indices(layers, 3)


@every_backbone
def test_copies_and_channels_last_change_no_answer(build: Build) -> None:
    model, images = build(), random_images(*IMAGES)
    expected = model(images)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images), expected) and twin.config == model.config
    images = images.to(memory_format=torch.channels_last)
    for network in (model, copy.deepcopy(model).to(memory_format=torch.channels_last)):
        assert relative_error(network(images), expected) < 1e-5


@every_backbone
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.05), (torch.float16, 0.006)])
def test_half_precision_weights_answer_in_kind(
    build: Build, dtype: torch.dtype, bound: float
) -> None:
    model, images = build(), random_images(*IMAGES)
    expected = model(images)
    logits = model.to(dtype)(images.to(dtype))
    assert logits.dtype == dtype
    assert relative_error(logits, expected) < bound


@every_backbone
def test_autocast_trains_in_bfloat16_with_float32_gradients(build: Build) -> None:
    model, images = build().train(), random_images(*IMAGES)
    torch.manual_seed(0)  # rotary positions move in training
    exact = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
    assert logits.dtype == torch.bfloat16
    rough = torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))
    assert all(g.dtype == torch.float32 for g in rough)
    a, b = (torch.cat([g.flatten() for g in grads]) for grads in (rough, exact))
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.95


def saved_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes that autograd keeps between forward and backward, without parameters."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(images)
    del output
    return sum(sizes.values())


CHECKPOINTED: list[tuple[str, dict[str, Any], float]] = [
    ("vit", {"depth": 8, "dropout": 0.1, "drop_path": 0.2}, 0.2),
    ("hybrid", {"depth": 2, "dropout": 0.1}, 0.4),
    ("bit", {"depths": (3, 3)}, 0.4),
]


@pytest.mark.parametrize(("name", "fields", "share"), CHECKPOINTED)
def test_activation_checkpointing_saves_memory_and_no_gradient_changes(
    name: str, fields: dict[str, Any], share: float
) -> None:
    model, images = BACKBONES[name](**fields).double().train(), random_images(*IMAGES).double()
    results = {}
    for switch in (False, True):
        model.activation_checkpointing = switch
        torch.manual_seed(3)  # dropout must also be replayed
        gradients = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
        results[switch] = (gradients, saved_bytes(model, images))
    for a, b in zip(results[True][0], results[False][0], strict=True):
        assert torch.equal(a, b)
    assert results[True][1] < share * results[False][1]


def test_every_backbone_compiles_to_one_graph_and_exports() -> None:
    """In a process without the shape checks of this run."""
    script = Path(__file__).with_name("traced_models.py")
    path = os.pathsep.join([str(script.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    # Fused differently, bfloat16 rounds differently.
    assert errors.pop("vit compile_bfloat16") < 0.03
    assert len(errors) == 4 * 2 + 2 + 1
    assert all(error < 1e-5 for error in errors.values()), errors
