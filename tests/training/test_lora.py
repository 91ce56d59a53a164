"""Low-rank adaptation: against NumPy, against peft, merged and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from tests.grouped import image_classifier
from vit.checkpoints.native import save_native
from vit.checkpoints.pretrained import create_model, load_pretrained
from vit.errors import UserError
from vit.models.config import Rotary, ViTConfig
from vit.models.zoo import build_model
from vit.training.callbacks import EMA
from vit.training.facts import Labels
from vit.training.lora import LoraLinear, add_lora, merge_lora

pytestmark = pytest.mark.filterwarnings("ignore")

TINY: dict[str, Any] = {
    "image_size": 8, "patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2,
}  # fmt: skip
CLASSES = ["a", "b", "c"]
# Rotary positions, and keys without a bias.
DINOV3: dict[str, Any] = {
    "pos_embed": "none",
    "num_registers": 2,
    "rotary": Rotary(),
    "image_size": 8,
}


def random_model(**options: Any) -> Any:
    """A model in which no tensor is zero."""
    model = build_model(ViTConfig(**{**TINY, "num_classes": 3, **options}))
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def with_factors(model: Any, rank: int, seed: int = 2) -> Any:
    add_lora(model, rank)
    torch.manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            nn.init.normal_(layer.lora_a, std=0.3)
            nn.init.normal_(layer.lora_b, std=0.3)
    return model


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A model directory of random weights for the three classes."""
    model = random_model()
    save_native(tmp_path / "base", model, classes=CLASSES, preprocess=None, extra={})
    return str(tmp_path / "base")


@pytest.mark.parametrize("rank", [3, 16])
@pytest.mark.parametrize("options", [{}, DINOV3], ids=["ViT", "DINOv3"])
def test_a_merged_model_is_plain_and_gives_the_same_logits(
    rank: int, options: dict[str, Any]
) -> None:
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


def test_factors_and_head_alone_are_trained(
    weights: str, make_data, make_trainer, snapshot
) -> None:
    model = tuned(weights, lora=2)
    before = snapshot(model.model)
    make_trainer(max_epochs=2).fit(model, make_data())
    changed = {n for n, t in model.model.state_dict().items() if not torch.equal(t, before[n])}
    layers = [f"blocks.{i}.{n}" for i in (0, 1) for n in ("attn.qkv", "mlp.fc1", "mlp.fc2")]
    factors = {f"{layer}.lora_{f}" for layer in layers for f in "ab"}
    assert changed == {"head.weight", "head.bias"} | factors
    # 2 * 2 * (3 * (16 + 16) + 2 * (16 + 32)), and the head's.
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == 768 + 3 * 17


def tuned(weights: str, **options: Any) -> Any:
    torch.manual_seed(3)
    return image_classifier(
        pretrained=weights,
        num_classes=3,
        image_size=8,
        labels=Labels(names=CLASSES),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
        **options,
    )


def test_peft_gives_the_same_logits_and_gradients() -> None:
    """transformers' DINOv2 with peft's LoRA on the layers of the same names."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Dinov2Model(
        transformers.Dinov2Config(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=8,
            patch_size=4, use_mask_token=False,
        )
    )  # fmt: skip
    targets = ["q_proj", "k_proj", "v_proj", "query", "key", "value", "fc1", "fc2"]
    config = peft.LoraConfig(r=3, lora_alpha=3, target_modules=targets)
    theirs = peft.get_peft_model(theirs, config).double().eval()
    ours = random_model(num_classes=0, layer_scale=1.0, layer_norm_eps=1e-6, activation="gelu")
    ours = with_factors(ours, 3).double().eval()
    other = dict(theirs.base_model.model.named_parameters())
    pairs = list(peft_names(ours, other))
    assert {name for _, names in pairs for name in names} == {n for n in other if "mask" not in n}
    named = dict(ours.named_parameters())
    for name, names in pairs:
        mine = named[name].detach()
        parts = mine if len(names) == 3 and "lora" in name else mine.chunk(len(names))
        for part, key in zip(parts, names, strict=True):
            other[key].data.copy_(part.view_as(other[key]))
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    mine, yours = ours.features(images), theirs(images).last_hidden_state
    torch.testing.assert_close(mine, yours, rtol=1e-10, atol=1e-10)
    mine.square().sum().backward()
    yours.square().sum().backward()
    compared = 0
    for name, names in pairs:
        gradient = named[name].grad
        if "lora" not in name:
            assert gradient is None
            continue
        assert gradient is not None
        for part, key in zip(gradient, names, strict=True):
            torch.testing.assert_close(part, other[key].grad, rtol=1e-8, atol=1e-8)
            compared += 1
    assert compared == 2 * 2 * 5  # A and B of five layers in two blocks


def peft_names(ours: Any, other: dict[str, Any]) -> Any:
    """Our names with those of the same tensors in peft's model of transformers' DINOv2."""
    for name in dict(ours.named_parameters()):
        if not name.startswith("blocks."):
            top = {
                "patch_embed.proj": "embeddings.patch_embeddings.projection",
                "cls_token": "embeddings.cls_token",
                "pos_embed": "embeddings.position_embeddings",
                "norm": "layernorm",
            }
            prefix = next(p for p in top if name == p or name.startswith(f"{p}."))
            yield name, [top[prefix] + name.removeprefix(prefix)]
            continue
        _, number, rest = name.split(".", 2)
        start = f"encoder.layer.{number}."
        layer, _, last = rest.rpartition(".")
        last = {"lora_a": "lora_A.default.weight", "lora_b": "lora_B.default.weight"}.get(
            last, last
        )
        new = any(".q_proj." in key for key in other)  # transformers 5 has renamed them
        joined = ("q_proj", "k_proj", "v_proj") if new else ("query", "key", "value")
        layers = {
            "attn.qkv": [f"attention.{'' if new else 'attention.'}{n}" for n in joined],
            "attn.proj": ["attention.o_proj" if new else "attention.output.dense"],
            "ls1": ["layer_scale1"],
            "ls2": ["layer_scale2"],
        }.get(layer, [layer])
        last = {"gamma": "lambda1"}.get(last, last)
        plain = [f"{start}{part}.{last}" for part in layers]
        wrapped = [f"{start}{part}.base_layer.{last}" for part in layers]
        yield name, plain if plain[0] in other else wrapped


@pytest.mark.parametrize("rank", [0, 17])
def test_a_rank_outside_the_width_is_refused(rank: int, weights: str) -> None:
    with pytest.raises(UserError, match=rf"model\.lora={rank} is not a rank between 1 .* 16"):
        tuned(weights, lora=rank)


def test_lora_needs_weights_and_a_transformer(weights: str) -> None:
    with pytest.raises(UserError, match=r"give model\.pretrained"):
        image_classifier("vit_ti16", num_classes=3, lora=2)
    with pytest.raises(UserError, match="exclude each other"):
        tuned(weights, lora=2, freeze_backbone=True)
    with pytest.raises(UserError, match="a ResNet has no queries"):
        add_lora(create_model("bit_r50x1", num_classes=3, depths=[1]), 2)


def test_a_killed_run_continues_bitwise(
    weights: str, make_data, make_trainer, tmp_path: Path, continues_bitwise
) -> None:
    def run(record: Any, resume: Path | None = None) -> Any:
        torch.manual_seed(0 if resume is None else 99)
        model = tuned(weights, lora=2)
        keep = ModelCheckpoint(
            dirpath=tmp_path / "kept", save_top_k=-1, filename="{step}", every_n_train_steps=2
        )
        callbacks = [EMA(0.9), record, keep]
        trainer = make_trainer(max_epochs=3, gradient_clip_val=1.0, callbacks=callbacks)
        trainer.fit(model, make_data(), ckpt_path=resume)
        return model

    last = continues_bitwise(run, 8)
    # The checkpoint alone is read as the merged model.
    read, _ = load_pretrained(last)
    saved = torch.load(last, weights_only=True)["state_dict"]
    trained = tuned(weights, lora=2)
    trained.load_state_dict(saved)
    merge_lora(trained.model)
    assert read.state_dict().keys() == trained.model.state_dict().keys()
    for name, value in trained.model.state_dict().items():
        assert torch.equal(read.state_dict()[name], value), name
