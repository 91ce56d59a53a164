"""The two architectures' configurations: frozen, checked, and plain JSON on disk.

Whatever differs between the published weights of one architecture (GELU form, epsilons, resize
rule, where the final norm sits) is a field, so that a file's own arithmetic travels with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vit.errors import UserError, did_you_mean

PosResize = Literal[
    "bilinear_corners",
    "bilinear",
    "bicubic_corners",
    "bicubic",
    "bicubic_antialias",
    "bicubic_offset",
]
"""How a table of positions meets another grid; each name is the rule of a published source.

bilinear_corners: Google's code (scipy.ndimage.zoom, order 1), bilinear with aligned corners;
bilinear: half-pixel centres; bicubic_corners: torchvision; bicubic: DeiT and Hugging Face;
bicubic_antialias: timm, and Hugging Face for DINOv2 with registers;
bicubic_offset: DINOv2, bicubic by the scale factor (size + 0.1) / old size.
"""

Activation = Literal["gelu", "gelu_tanh", "swiglu"]

WsMode = Literal["google_hybrid", "google_bit", "timm"]
"""Arithmetic of weight standardisation and GroupNorm; each name is a published source.

google_hybrid: w / (std + 1e-5), GroupNorm epsilon 1e-6 (vit_jax/models_resnet.py);
google_bit: w / sqrt(var + 1e-10), GroupNorm epsilon 1e-5 (big_transfer, bit_pytorch/models.py);
timm: w / sqrt(var + 1e-8), GroupNorm epsilon 1e-5 (timm, and Hugging Face's BiT).
"""


ROOT_CHANNELS = 64
"""Channels of the first convolution of every ResNet, before a width factor (arXiv:1512.03385,
table 1)."""


def gated_width(mlp_dim: int, activation: Activation) -> int:
    """Outputs of an MLP's first layer: a gated one gives gate and value (arXiv:2002.05202)."""
    return 2 * mlp_dim if activation == "swiglu" else mlp_dim


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Architecture of a Vision Transformer or hybrid. Defaults are the paper's ViT-B/16 at 224."""

    image_size: int | tuple[int, int] = 224
    """Pixels, one side or (height, width), for which the position table is made."""
    patch_size: int = 16
    """Pixels from one token to the next; for a hybrid, the stride of its ResNet included."""
    in_channels: int = 3
    """Channels of the input images."""
    num_classes: int = 1000
    """Outputs of the head; 0 builds a backbone whose forward gives pooled features."""
    width: int = 768
    """Token size, D in the paper."""
    depth: int = 12
    """Number of encoder layers, L in the paper."""
    mlp_dim: int = 3072
    """Hidden size of the MLP in each layer."""
    num_heads: int = 12
    """Attention heads; must divide width."""
    pool: Literal["cls", "gap", "map", "cls_gap"] = "cls"
    """Image representation: class token, mean of the patch tokens, attention pooling over them
    (arXiv:2106.04560, section 3.4), or class token and mean side by side (DINOv2's classifiers)."""
    norm_after_pool: bool = False
    """Whether the final LayerNorm follows pooling (timm's fc_norm) instead of preceding it."""
    class_token: bool = True
    """Whether a learned class token is prepended."""
    distillation_token: bool = False
    """Whether a second token, with a head of its own, learns from a teacher (arXiv:2012.12877)."""
    num_registers: int = 0
    """Learned register tokens, without positions, before the patches (arXiv:2309.16588)."""
    pos_embed: Literal["learned", "sincos2d", "none"] = "learned"
    """Positions: a learned table, fixed 2-D sine and cosine, or none."""
    pos_embed_class_slot: bool = True
    """Whether the table has entries for class and distillation token (paper: yes; DeiT-III: no)."""
    pos_resize: PosResize = "bilinear_corners"
    """Rule by which the table is resampled to another grid; the paper's code by default."""
    representation_size: int | None = None
    """Size of the tanh layer before the head, used for pre-training (section 3.1), or None."""
    dropout: float = 0.0
    """Probability in [0, 1) after every dense layer but qkv, and after the positions (B.1)."""
    drop_path: float = 0.0
    """Probability in [0, 1) of skipping the last layer's branches; grows linearly from 0."""
    drop_path_uniform: bool = False
    """Whether every layer is skipped with the same probability (DeiT-III) instead."""
    layer_scale: float | None = None
    """Initial value of LayerScale's factors, or None for no LayerScale."""
    activation: Activation = "gelu_tanh"
    """GELU by its tanh approximation, as the official code computes it, or exactly ("gelu");
    "swiglu": fc1 gives gate and value, 2 * mlp_dim wide (DINOv2's ViT-g)."""
    layer_norm_eps: float = 1e-6
    """Epsilon of every LayerNorm."""
    stem_depths: tuple[int, ...] | None = None
    """Blocks in each stage of a hybrid's ResNet; () is its root alone, None no ResNet at all."""
    ws_mode: WsMode = "google_hybrid"
    """Arithmetic of the hybrid's standardised convolutions and GroupNorms."""

    def __post_init__(self) -> None:
        sizes = ["patch_size", "in_channels", "width", "depth", "mlp_dim", "num_heads"]
        if self.representation_size is not None:
            sizes.append("representation_size")
        _check_fields(self, sizes, ["num_classes", "num_registers"])
        if self.stem_depths is not None:
            object.__setattr__(self, "stem_depths", _as_depths("stem_depths", self.stem_depths, 0))
            if self.patch_size % self.stem_stride:
                raise UserError(
                    f"patch_size={self.patch_size} is not a multiple of {self.stem_stride}, "
                    f"the stride of stem_depths={list(self.stem_depths)}"
                )
        if self.width % self.num_heads:
            nearest = self.width - self.width % self.num_heads
            raise UserError(
                f"width={self.width} is not a multiple of num_heads={self.num_heads}; "
                f"choose width={nearest or self.num_heads} or another num_heads"
            )
        height, width = self.size
        if height % self.patch_size or width % self.patch_size:
            near = "x".join(str(max(n // self.patch_size, 1) * self.patch_size) for n in self.size)
            raise UserError(
                f"image_size={height}x{width} is not a multiple of patch_size={self.patch_size}; "
                f"choose {near} or another patch_size"
            )
        self._check_tokens()
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} is not a probability in [0, 1)")

    def _check_tokens(self) -> None:
        if self.pool in ("cls", "cls_gap") and not self.class_token:
            raise UserError(f"pool={self.pool!r} needs class_token=true; choose pool='gap'")
        if self.distillation_token and self.pool != "cls":
            raise UserError(f"distillation_token=true needs pool='cls', not {self.pool!r}")
        if self.distillation_token and self.representation_size is not None:
            raise UserError(
                "distillation_token=true and representation_size exclude each other: "
                "DeiT's two heads follow the tokens directly"
            )
        if self.norm_after_pool and self.pool in ("map", "cls_gap"):
            raise UserError(f"norm_after_pool=true needs pool='cls' or 'gap', not {self.pool!r}")

    @property
    def size(self) -> tuple[int, int]:
        """`image_size` as (height, width) in pixels."""
        return _as_size(self.image_size)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches of the position table."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    @property
    def stem_stride(self) -> int:
        """Pixels from one position of the ResNet stem's map to the next; 1 without a stem."""
        if self.stem_depths is None:
            return 1
        return 4 * 2 ** max(len(self.stem_depths) - 1, 0)

    @property
    def stem_channels(self) -> int:
        """Channels of the map that is cut into patches: the image's, or those of the ResNet stem.

        Every stage ends in 4 times the channels of its 3x3 convolutions, which double from stage
        to stage (arXiv:1512.03385, table 1).
        """
        if self.stem_depths is None:
            return self.in_channels
        if not self.stem_depths:
            return ROOT_CHANNELS
        return 4 * ROOT_CHANNELS * 2 ** (len(self.stem_depths) - 1)

    @property
    def num_patches(self) -> int:
        """Patches of an image of `size`: N in the paper (arXiv:2010.11929, section 3.1)."""
        return self.grid[0] * self.grid[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Learned tokens before the patches: class, distillation, registers."""
        return self._num_slot_tokens + self.num_registers

    @property
    def num_tokens(self) -> int:
        """Tokens of an image of `size`, prefix tokens included: n of every attention product."""
        return self.num_prefix_tokens + self.num_patches

    @property
    def num_position_slots(self) -> int:
        """Entries of a learned position table before those of the patches.

        One for each class and distillation token (arXiv:2010.11929, equation 1), or none (DeiT-III,
        arXiv:2204.07118); registers have no positions (arXiv:2309.16588).
        """
        return self._num_slot_tokens if self.pos_embed_class_slot else 0

    @property
    def num_positions(self) -> int:
        """Entries of a learned position table."""
        return self.num_position_slots + self.num_patches

    @property
    def mlp_hidden_width(self) -> int:
        """Outputs of the first layer of each MLP: twice `mlp_dim` where it is gated."""
        return gated_width(self.mlp_dim, self.activation)

    @property
    def num_features(self) -> int:
        """Numbers per image that the head receives, after pooling and the tanh layer."""
        if self.representation_size is not None:
            return self.representation_size
        return self.pooled_width

    @property
    def pooled_width(self) -> int:
        """Numbers per image after pooling: class token and mean stand side by side in "cls_gap"."""
        return 2 * self.width if self.pool == "cls_gap" else self.width

    @property
    def num_logit_layers(self) -> int:
        """Layers that give logits: two when distilled, which pool a token each."""
        return 1 + int(self.distillation_token)

    @property
    def _num_slot_tokens(self) -> int:
        return int(self.class_token) + int(self.distillation_token)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with the architecture's name."""
        stem = None if self.stem_depths is None else list(self.stem_depths)
        values = {**asdict(self), "image_size": list(self.size), "stem_depths": stem}
        return {"architecture": "vit", **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ViTConfig":
        """The inverse of `to_dict`. UserError names a field that does not exist."""
        return cls(**_known_fields(cls, values))


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Architecture of a BiT ResNet-v2 (arXiv:1912.11370). Defaults are R50x1 at 224 pixels."""

    image_size: int | tuple[int, int] = 224
    """Pixels, one side or (height, width), that images are brought to; any size is accepted."""
    in_channels: int = 3
    """Channels of the input images."""
    num_classes: int = 1000
    """Outputs of the head; 0 builds a backbone whose forward gives pooled features."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Bottleneck blocks in each stage."""
    width_factor: int = 1
    """Multiplies every channel count; "x3" in R101x3."""
    ws_mode: WsMode = "google_bit"
    """Arithmetic of the standardised convolutions and GroupNorms."""

    def __post_init__(self) -> None:
        _check_fields(self, ["in_channels", "width_factor"], ["num_classes"])
        object.__setattr__(self, "depths", _as_depths("depths", self.depths, 1))

    @property
    def size(self) -> tuple[int, int]:
        """`image_size` as (height, width) in pixels."""
        return _as_size(self.image_size)

    @property
    def root_channels(self) -> int:
        """Channels of the first convolution, and of the 3x3 convolutions of the first stage."""
        return ROOT_CHANNELS * self.width_factor

    @property
    def stage_channels(self) -> list[int]:
        """Channels of each stage's output."""
        return [4 * self.root_channels * 2**s for s in range(len(self.depths))]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with the architecture's name."""
        values = {**asdict(self), "image_size": list(self.size), "depths": list(self.depths)}
        return {"architecture": "resnet", **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ResNetConfig":
        """The inverse of `to_dict`. UserError names a field that does not exist."""
        return cls(**_known_fields(cls, values))


def _as_size(size: int | Sequence[int]) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        raise UserError(f"image_size={size!r} must be one side or (height, width), in pixels")
    return sides[0], sides[1]


def _as_depths(name: str, depths: Sequence[int], least: int) -> tuple[int, ...]:
    values = tuple(depths)
    if not least <= len(values) <= 4 or not all(isinstance(n, int) and n > 0 for n in values):
        raise UserError(f"{name}={list(values)} must be {least} to 4 whole numbers above 0")
    return values


def _known_fields(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `kind` from JSON: its fields only, known choices only, lists as tuples."""
    known = [field.name for field in fields(kind)]
    values = {name: value for name, value in values.items() if name != "architecture"}
    for name in values:
        if name not in known:
            raise UserError(f"unknown model option {name!r}{did_you_mean(name, known)}")
    _check_choices(kind, values)
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _check_choices(kind: type, values: Mapping[str, Any]) -> None:
    hints = get_type_hints(kind)
    for name, value in values.items():
        if get_origin(hints[name]) is Literal and value not in get_args(hints[name]):
            choices = ", ".join(map(repr, get_args(hints[name])))
            raise UserError(f"{name}={value!r} is not one of {choices}")


def _check_fields(config: Any, positive: Sequence[str], not_negative: Sequence[str]) -> None:
    """Brings image_size into its canonical form; UserError names a value outside its range."""
    object.__setattr__(config, "image_size", _as_size(config.image_size))
    _check_choices(type(config), vars(config))
    for name in (*positive, *not_negative):
        value, least = getattr(config, name), 1 if name in positive else 0
        if not isinstance(value, int) or value < least:
            raise UserError(f"{name}={value!r} must be a whole number of at least {least}")
