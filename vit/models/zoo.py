"""One table of the models that have a name: their sizes, and the parameter count each must have."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from vit.errors import UserError, did_you_mean
from vit.models.vision_transformer import VisionTransformer, ViTConfig


@dataclass(frozen=True)
class Entry:
    """A named architecture."""

    config: ViTConfig
    num_params: int
    """Published count with 1000 classes and no tanh layer before the head."""
    source: str


def _vit(patch_size: int, width: int, depth: int, mlp_dim: int, num_heads: int) -> ViTConfig:
    return ViTConfig(
        patch_size=patch_size, width=width, depth=depth, mlp_dim=mlp_dim, num_heads=num_heads
    )


_PAPER = "arXiv:2010.11929, Table 1"
_AUGREG = "arXiv:2106.10270, Table 2"

ZOO: dict[str, Entry] = {
    "vit_ti16": Entry(_vit(16, 192, 12, 768, 3), 5_717_416, _AUGREG),
    "vit_s16": Entry(_vit(16, 384, 12, 1536, 6), 22_050_664, _AUGREG),
    "vit_s32": Entry(_vit(32, 384, 12, 1536, 6), 22_878_952, _AUGREG),
    "vit_b16": Entry(_vit(16, 768, 12, 3072, 12), 86_567_656, _PAPER),
    "vit_b32": Entry(_vit(32, 768, 12, 3072, 12), 88_224_232, _PAPER),
    "vit_l16": Entry(_vit(16, 1024, 24, 4096, 16), 304_326_632, _PAPER),
    "vit_l32": Entry(_vit(32, 1024, 24, 4096, 16), 306_535_400, _PAPER),
    "vit_h14": Entry(_vit(14, 1280, 32, 5120, 16), 632_045_800, _PAPER),
}


def list_models(pattern: str = "*") -> list[str]:
    """Names of the known models, filtered by a shell-style pattern such as "vit_b*"."""
    return [name for name in ZOO if fnmatchcase(name, pattern)]


def canonical_name(name: str) -> str:
    """'ViT-B/16', 'vit_b_16' and 'vit_b16' are one model; UserError lists the nearest known names."""

    def key(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    by_key = {key(known): known for known in ZOO}
    if key(name) not in by_key:
        hint = did_you_mean(name.lower(), ZOO) or f"; known: {', '.join(ZOO)}"
        raise UserError(f"unknown model {name!r}{hint}")
    return by_key[key(name)]


def model_config(name: str, **overrides: Any) -> ViTConfig:
    """The configuration of a named model with some fields replaced."""
    config = ZOO[canonical_name(name)].config
    return ViTConfig.from_dict({**config.to_dict(), **overrides})


def build_model(config: ViTConfig) -> VisionTransformer:
    """A model with fresh weights."""
    return VisionTransformer(config)
