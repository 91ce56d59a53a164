"""Maps and relevance follow from the attentions that transformers returns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.small_models import filled
from vit.extensions import inspection
from vit.extensions.inspection.capture import transformer
from vit.weights.pretrained import load_pretrained

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
DEIT = {**SIZES, "intermediate_size": 96}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("ViTConfig", "ViTForImageClassification", DEIT),
    "deit distilled": ("DeiTConfig", "DeiTForImageClassificationWithTeacher", DEIT),
    "dinov2 with registers": (
        "Dinov2WithRegistersConfig",
        "Dinov2WithRegistersForImageClassification",
        {**SIZES, "mlp_ratio": 2},
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_maps_equal_output_attentions(kind: str, tmp_path: Path) -> None:
    config, name, arguments = MODELS[kind]
    peer = getattr(transformers, name)(getattr(transformers, config)(**arguments))
    filled(peer)
    peer.save_pretrained(tmp_path)
    peer.set_attn_implementation("eager")
    model = transformer(load_pretrained(tmp_path)[0])
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    answer = peer.forward(images, output_attentions=True)
    theirs = torch.stack(answer.attentions, 1)
    ours = inspection.attention(model, images, None)
    assert ours.shape == theirs.shape == (2, 3, 4, *[16 + model.num_prefix_tokens] * 2)
    assert (ours - theirs).abs().max() < 1e-5
    p = {"vit": 1, "deit distilled": 2, "dinov2 with registers": 5}[kind]
    maps = theirs[:, 1:2, :, 0, p:].unflatten(-1, (4, 4))
    assert (inspection.class_attention(model, images, [1]) - maps).abs().max() < 1e-5

    def read(total: Tensor) -> Tensor:
        row = total[:, :2].mean(1) if kind == "deit distilled" else total[:, 0]
        if kind == "dinov2 with registers":  # its head reads the class token and the mean
            row = (row + total[:, p:].mean(1)) / 2
        return row[:, p:].unflatten(-1, (4, 4))

    total = torch.eye(16 + p)
    for layer in theirs.unbind(1):  # arXiv:2005.00928, section 3: A = 0.5 W + 0.5 I
        total = (layer.mean(1) + torch.eye(16 + p)) / 2 @ total
    assert (inspection.rollout(model, images) - read(total)).abs().max() < 1e-5
    labels = [4, 1]
    grads = torch.autograd.grad(answer.logits[range(2), labels].sum(), answer.attentions)
    total = torch.eye(16 + p)
    for layer, grad in zip(answer.attentions, grads, strict=True):  # arXiv:2103.15679, eqs. 5-6
        total = total + (grad * layer).relu().mean(1) @ total
    expected = read(total)
    assert expected.std() > 1e-3
    assert (inspection.gradient_rollout(model, images, labels) - expected).abs().max() < 1e-5
