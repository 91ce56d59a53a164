"""Low-rank adaptation: against peft, merged and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from tests.grouped import image_classifier, tuned
from tests.models.small_models import filled
from vit.errors import UserError
from vit.extensions.adaptation.lora import LoRA, LoraLinear, add_lora, merge_lora
from vit.extensions.recipes.ema import EMA
from vit.models.config import ViTConfig
from vit.models.zoo import build_model
from vit.weights.pretrained import create_model, load_pretrained

pytestmark = pytest.mark.filterwarnings("ignore")

TINY: dict[str, Any] = {
    "image_size": 8, "patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2,
}  # fmt: skip

# Rotary positions, and keys without a bias.
DINOV3: dict[str, Any] = {
    "pos_embed": "none",
    "num_registers": 2,
    "rotary": {},
    "image_size": 8,
}


def random_model(**options: Any) -> Any:
    """A model in which no tensor is zero."""
    return filled(build_model(ViTConfig(**{**TINY, "num_classes": 3, **options})), 1).train()


def with_factors(model: Any, rank: int, seed: int = 2) -> Any:
    add_lora(model, rank)
    torch.manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            nn.init.normal_(layer.lora_a, std=0.3)
            nn.init.normal_(layer.lora_b, std=0.3)
    return model


@pytest.fixture
def weights(save_weights) -> str:
    return save_weights("abc")


@pytest.mark.parametrize("rank", [3, 16])
@pytest.mark.parametrize("options", [{}, DINOV3], ids=["ViT", "DINOv3"])
def test_a_merged_model_is_plain_with_the_same_logits(rank: int, options: dict[str, Any]) -> None:
    model = random_model(**options)
    before, classes = model.eval()(torch.ones(1, 3, 8, 8)), [type(m) for m in model.modules()]
    add_lora(model, rank)
    assert torch.equal(model(torch.ones(1, 3, 8, 8)), before)
    model = with_factors(random_model(**options), rank)
    model = model.double().eval()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before, keys = model(images), build_model(model.config).state_dict().keys()
    merge_lora(model)
    torch.testing.assert_close(model(images), before, rtol=1e-12, atol=1e-12)
    assert model.state_dict().keys() == keys
    assert [type(m) for m in model.modules()] == classes
    assert not any(isinstance(m, LoraLinear) for m in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_only_factors_and_head_are_trained(weights: str, make_data, make_trainer, snapshot) -> None:
    model = tuned(weights, adaptation=LoRA(2))
    before = snapshot(model.model)
    make_trainer(max_epochs=2).fit(model, make_data())
    changed = {n for n, t in model.model.state_dict().items() if not torch.equal(t, before[n])}
    layers = [f"blocks.{i}.{n}" for i in (0, 1) for n in ("attn.qkv", "mlp.fc1", "mlp.fc2")]
    factors = {f"{layer}.lora_{f}" for layer in layers for f in "ab"}
    assert changed == {"head.weight", "head.bias"} | factors
    # 2 * 2 * (3 * (16 + 16) + 2 * (16 + 32)), and the head's.
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == 768 + 3 * 17


@pytest.mark.parametrize("name", ["attn.qkv", "mlp.fc1"])
def test_answers_and_gradients_of_a_layer_are_pefts(name: str) -> None:
    """Queries, keys and values side by side are three layers there."""
    peft = pytest.importorskip("peft")
    ours: Any = with_factors(random_model(), 3).double().blocks[1].get_submodule(name)
    count = len(ours.lora_a)
    parts = [nn.Linear(16, len(ours.weight) // count) for _ in range(count)]
    theirs: Any = nn.ModuleDict({f"part{i}": part for i, part in enumerate(parts)})
    config = peft.LoraConfig(r=3, lora_alpha=3, target_modules=list(theirs))
    layers = list(peft.inject_adapter_in_model(config, theirs).double().values())
    a = [layer.lora_A["default"].weight for layer in layers]
    b = [layer.lora_B["default"].weight for layer in layers]
    rows = zip(layers, ours.weight.chunk(count), ours.bias.chunk(count), strict=True)
    with torch.no_grad():
        for layer, weight, bias in rows:
            layer.base_layer.weight.copy_(weight)
            layer.base_layer.bias.copy_(bias)
        for factors, values in ((a, ours.lora_a), (b, ours.lora_b)):
            for factor, value in zip(factors, values, strict=True):
                factor.copy_(value)
    x = torch.randn(5, 16, dtype=torch.float64)
    mine, yours = ours(x), torch.cat([layer(x) for layer in layers], -1)
    torch.testing.assert_close(mine, yours, rtol=1e-10, atol=1e-10)
    mine.square().sum().backward()
    yours.square().sum().backward()
    assert ours.weight.grad is None and ours.bias.grad is None
    for factors, gradient in ((a, ours.lora_a.grad), (b, ours.lora_b.grad)):
        expected = torch.stack([factor.grad for factor in factors])
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)


def test_what_cannot_be_adapted_is_refused_and_left_as_it_is(weights: str) -> None:
    for rank in (0, 17):
        with pytest.raises(UserError, match=rf"model\.lora={rank} is not a rank between 1 .* 16"):
            tuned(weights, adaptation=LoRA(rank))
    with pytest.raises(UserError, match=r"model\.adaptation needs model\.pretrained"):
        image_classifier("vit_ti16", num_classes=3, adaptation=LoRA(2))
    with pytest.raises(UserError, match="a ResNet has no queries"):
        add_lora(create_model("bit_r50x1", num_classes=3, depths=[1]), 2)
    model = random_model(pool="gap", variant={"mixer": "gru", "mlp": "none"})
    with pytest.raises(UserError, match="lora=4: this model's variant has neither"):
        add_lora(model, 4)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_checkpoint_alone_is_read_as_the_merged_model(
    weights: str, make_data, make_trainer, tmp_path: Path
) -> None:
    """The average of a run with EMA, whose killed runs are those of test_adapted_runs.py."""
    trained = tuned(weights, adaptation=LoRA(2))
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last", every_n_train_steps=2)
    make_trainer(max_steps=4, callbacks=[EMA(0.9), keep]).fit(trained, make_data())
    read, _ = load_pretrained(tmp_path / "last.ckpt")
    trained.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])
    merge_lora(trained.model)
    assert read.state_dict().keys() == trained.model.state_dict().keys()
    for name, value in trained.model.state_dict().items():
        assert torch.equal(read.state_dict()[name], value), name
