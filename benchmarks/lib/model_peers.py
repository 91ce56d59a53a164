"""One architecture from four libraries, in the settings that speed/models.py compares."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lib.harness import ModelConfig, build_model, model_config
from vit import ViTConfig

CIFAR = "cifar"
ISOLATES = "isolate_recompiles" in inspect.signature(torch.compile).parameters
"""torch.compile can keep models of one class apart (from 2.12 on)."""


def sized(width: int, depth: int, image_size: int, patch_size: int, **more: int) -> ViTConfig:
    """A ViT with exact GELU, as in the three peers, whose heads have at most 96 channels."""
    heads = more.pop("num_heads", max(1, width // 64))
    sizes = {"image_size": image_size, "patch_size": patch_size, "mlp_dim": 4 * width}
    return ViTConfig(width=width, depth=depth, num_heads=heads, activation="gelu", **sizes, **more)


def configuration(name: str) -> ModelConfig:
    """A named model with exact GELU; "cifar" is a ViT with 2.7 M."""
    if name == CIFAR:
        return sized(192, 6, 32, 4, num_classes=10)
    config = model_config(name)
    return model_config(name, activation="gelu") if isinstance(config, ViTConfig) else config


@dataclass(frozen=True)
class Setting:
    """A library and its options."""

    library: str
    name: str
    precision: str = "fp32"
    """fp32 or bf16: dtype of the weights in inference, of autocast in training."""
    explicit_attention: bool = False
    """Plain products instead of scaled_dot_product_attention."""
    fused_optimizer: bool = False
    compile: str | None = None
    """Mode of torch.compile."""
    cudnn: bool = False
    """Prefer cuDNN's attention."""

    def __str__(self) -> str:
        return f"{self.library}, {self.name}"

    def attention(self) -> AbstractContextManager[Any]:
        """Context of PyTorch's default choice of attention kernel, or of cuDNN first."""
        if not self.cudnn:
            return nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        return sdpa_kernel(order, set_priority=True)


def settings(config: ModelConfig, device: str, what: str) -> list[Setting]:
    """All settings to compare; the first is the baseline."""
    libraries = ["timm", "torchvision", "transformers"]
    if not isinstance(config, ViTConfig):
        libraries.remove("torchvision")  # has no BiT
    result = [Setting(library, "default") for library in libraries]
    if device == "cpu":
        ours = [Setting("vit", p, p, fused_optimizer=True) for p in ("fp32", "bf16")]
        return result + peers_on_cpu(config, libraries, what) + ours
    result.append(Setting("vit", "fp32", fused_optimizer=True))
    modes = {"bf16": {}, "bf16, compiled": {"compile": "default"}}
    if what == "inference":
        modes["bf16, CUDA graphs"] = {"compile": "reduce-overhead"}
    if isinstance(config, ViTConfig) and ISOLATES:
        modes["bf16, compiled, cuDNN attention"] = {"compile": "default", "cudnn": True}
    for library in [*libraries, "vit"]:
        for name, options in modes.items():
            result.append(Setting(library, name, "bf16", fused_optimizer=True, **options))
    return result


def peers_on_cpu(config: ModelConfig, libraries: list[str], what: str) -> list[Setting]:
    """Every setting of the peers that may be their fastest, besides their defaults."""
    result = []
    for precision in ("fp32", "bf16"):
        for library in libraries:
            if precision == "bf16" or what == "training":
                result.append(Setting(library, precision, precision, fused_optimizer=True))
            if library != "torchvision" and isinstance(config, ViTConfig):
                name = f"{precision}, explicit attention"
                result.append(Setting(library, name, precision, True, fused_optimizer=True))
    return result


def build_vit(config: ModelConfig, setting: Setting) -> nn.Module:
    """This package's model."""
    return build_model(config)


def build_timm(config: ModelConfig, setting: Setting) -> nn.Module:
    """timm's model. Its switch for explicit attention is read when a model is built."""
    import timm
    from timm.layers import set_fused_attn
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(config, ViTConfig):
        return timm.create_model("resnetv2_50x1_bit", num_classes=config.num_classes)
    set_fused_attn(not setting.explicit_attention)
    try:
        return VisionTransformer(
            img_size=config.size,
            patch_size=config.patch_size,
            num_classes=config.num_classes,
            embed_dim=config.width,
            depth=config.depth,
            num_heads=config.num_heads,
            mlp_ratio=config.mlp_dim / config.width,
            init_values=config.layer_scale,
        )
    finally:
        set_fused_attn(True)


def build_torchvision(config: ModelConfig, setting: Setting) -> nn.Module:
    """torchvision's model."""
    from torchvision.models import VisionTransformer

    assert isinstance(config, ViTConfig)
    return VisionTransformer(
        image_size=config.size[0],
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
    )


class Logits(nn.Module):
    """Unwraps the output record of transformers' models."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def build_transformers(config: ModelConfig, setting: Setting) -> nn.Module:
    """transformers' model."""
    import transformers

    if not isinstance(config, ViTConfig):
        return Logits(
            transformers.BitForImageClassification(
                transformers.BitConfig(num_labels=config.num_classes)
            )
        )
    theirs = transformers.ViTConfig(
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.num_heads,
        intermediate_size=config.mlp_dim,
        image_size=config.size[0],
        patch_size=config.patch_size,
        num_labels=config.num_classes,
        layer_norm_eps=config.layer_norm_eps,
        attn_implementation="eager" if setting.explicit_attention else "sdpa",
    )
    return Logits(transformers.ViTForImageClassification(theirs))


BUILDERS: dict[str, Callable[[ModelConfig, Setting], nn.Module]] = {
    "vit": build_vit,
    "timm": build_timm,
    "torchvision": build_torchvision,
    "transformers": build_transformers,
}


@torch.no_grad()
def fill(model: nn.Module) -> nn.Module:
    """Random values in every parameter, equal for equal names, as timm's and ours have."""
    for i, (name, parameter) in enumerate(sorted(model.named_parameters())):
        generator = torch.Generator().manual_seed(i)
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1 and "bias" not in name:
            parameter.copy_(1 + 0.2 * noise)
        elif parameter.ndim == 1:
            parameter.copy_(0.3 * noise)
        else:
            parameter.copy_(noise * parameter[0].numel() ** -0.5)
    return model
