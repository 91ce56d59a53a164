"""Configurations of the two architectures: frozen, validated, plain JSON on disk.

Every numerical choice that differs between published weights (GELU form, epsilons, resize rule,
position of the final norm) is a field, so that it is saved with the weights.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from vit.errors import ABOVE_ZERO, BELOW_ONE, UserError, check_range
from vit.models.fields import (
    JsonObject,
    as_depths,
    as_size,
    check_kinds,
    check_whole,
)

PosResize = Literal[
    "bilinear_corners",
    "bilinear",
    "bilinear_antialias",
    "bicubic_corners",
    "bicubic",
    "bicubic_antialias",
    "bicubic_offset",
]
"""Rules for resampling a position table to another grid, by published source.

bilinear_corners: Google's code (scipy.ndimage.zoom, order 1), bilinear with aligned corners;
bilinear: half-pixel centres; bilinear_antialias: SigLIP 2's NaFlex; bicubic_corners: torchvision;
bicubic: DeiT and Hugging Face;
bicubic_antialias: timm, and Hugging Face for DINOv2 with registers;
bicubic_offset: DINOv2, bicubic by the scale factor (size + 0.1) / old size.
"""

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu"]

WsMode = Literal["google_hybrid", "google_bit", "timm"]
"""Epsilons of weight standardisation and GroupNorm, by published source.

google_hybrid: w / (std + 1e-5), GroupNorm epsilon 1e-6 (vit_jax/models_resnet.py);
google_bit: w / sqrt(var + 1e-10), GroupNorm epsilon 1e-5 (big_transfer, bit_pytorch/models.py);
timm: w / sqrt(var + 1e-8), GroupNorm epsilon 1e-5 (timm, and Hugging Face's BiT).
"""


ROOT_CHANNELS = 64
"""Channels of a ResNet's first convolution at width factor 1 (arXiv:1512.03385, table 1)."""

PRODUCT_TOKENS = 1025
"""Most tokens for which attention keeps its weights, in bfloat16 training on a CPU. With more of
them, they would take over half of a layer's memory (vit/models/attention.py)."""


def gated_width(mlp_dim: int, activation: Activation) -> int:
    """Output width of an MLP's first layer; a gated one has gate and value (arXiv:2002.05202)."""
    return 2 * mlp_dim if activation == "swiglu" else mlp_dim


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Architecture of a Vision Transformer or hybrid. Defaults are the paper's ViT-B/16 at 224."""

    image_size: int | tuple[int, int] = 224
    """Image size in pixels, one side or (height, width); determines the position table."""
    patch_size: int = 16
    """Stride of the tokens in pixels; for a hybrid it includes the stride of the ResNet."""
    in_channels: int = 3
    """Channels of the images."""
    num_classes: int = 1000
    """Outputs of the head; 0 builds a backbone that returns pooled features."""
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
    """The final LayerNorm follows pooling (timm's fc_norm) instead of preceding it."""
    class_token: bool = True
    """A learned class token is prepended."""
    distillation_token: bool = False
    """There is a distillation token with its own head (arXiv:2012.12877)."""
    num_registers: int = 0
    """Number of learned register tokens, without positions (arXiv:2309.16588)."""
    pos_embed: Literal["learned", "sincos2d", "none"] = "learned"
    """Positions: a learned table, fixed 2-D sine and cosine, or none."""
    pos_embed_class_slot: bool = True
    """The table has entries for class and distillation token (paper: yes; DeiT-III: no)."""
    pos_resize: PosResize = "bilinear_corners"
    """Rule for resampling the table to another grid; default: the paper's code."""
    rotary: dict[str, bool | float | None] | None = field(default=None, hash=False)
    """Rotary positions in every layer, beside `pos_embed` or with "none": {} are DINOv3's, None has
    none. Fields: period, key_bias, shift, jitter, rescale (docs/backbone.md)."""
    tower: dict[str, Any] | None = field(default=None, hash=False)
    """An image tower that is no plain ViT: {} are Perception Encoder's parts, None has none."""
    cosine: JsonObject | None = field(default=None, hash=False)
    """Head that compares directions: {"projection": WIDTH or 0} (docs/names.md); None has none."""
    representation_size: int | None = None
    """Size of the tanh layer before the head, used for pre-training (section 3.1), or None."""
    dropout: float = 0.0
    """Dropout probability in [0, 1) after positions and all dense layers but qkv (B.1)."""
    drop_path: float = 0.0
    """Stochastic depth: probability in [0, 1) for the last layer; grows linearly from 0."""
    drop_path_uniform: bool = False
    """Every layer has the probability `drop_path` (DeiT-III)."""
    layer_scale: float | None = None
    """Initial value of LayerScale, or None for no LayerScale."""
    activation: Activation = "gelu_tanh"
    """GELU with tanh approximation, as in the official code, exact ("gelu"), or x sigmoid(1.702 x),
    OpenAI's ("quick_gelu"); in "swiglu", fc1 computes gate and value with width 2 * mlp_dim
    (DINOv2's ViT-g)."""
    pre_norm: bool = False
    """A LayerNorm between the embedding, whose patches have no bias, and the first layer (CLIP,
    arXiv:2103.00020)."""
    layer_norm_eps: float = 1e-6
    """Epsilon of every LayerNorm."""
    stem_depths: tuple[int, ...] | None = None
    """Blocks per stage of a hybrid's ResNet; () is only its root, None is no ResNet."""
    ws_mode: WsMode = "google_hybrid"
    """Epsilons of the hybrid's standardised convolutions and GroupNorms."""
    variant: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Mechanisms that papers propose, kind to options: {"positions": {"name": "relative"}}."""

    def __post_init__(self) -> None:
        sizes = ["patch_size", "in_channels", "width", "depth", "mlp_dim", "num_heads"]
        if self.representation_size is not None:
            sizes.append("representation_size")
        check_kinds(self)
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_whole(self, sizes, 1)
        check_whole(self, ["num_classes", "num_registers"], 0)
        if self.stem_depths is not None:
            object.__setattr__(self, "stem_depths", as_depths("stem_depths", self.stem_depths, 0))
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
        check_range("layer_norm_eps", self.layer_norm_eps, ABOVE_ZERO)
        for name in ("dropout", "drop_path"):
            check_range(name, getattr(self, name), BELOW_ONE)
        if self.layer_scale is not None:
            object.__setattr__(self, "layer_scale", float(self.layer_scale))  # 1 is 1.0

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
        return as_size(self.image_size)

    @property
    def head_size(self) -> int:
        """Channels of an attention head, e."""
        return self.width // self.num_heads

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches of the position table."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    @property
    def stem_stride(self) -> int:
        """Stride of the ResNet stem in pixels; 1 without a stem."""
        return 1 if self.stem_depths is None else 4 * 2 ** max(len(self.stem_depths) - 1, 0)

    @property
    def stem_channels(self) -> int:
        """Input channels of the patch embedding (arXiv:1512.03385, table 1, for a ResNet stem)."""
        if self.stem_depths is None:
            return self.in_channels
        stages = len(self.stem_depths)
        return 4 * ROOT_CHANNELS * 2 ** (stages - 1) if stages else ROOT_CHANNELS

    @property
    def num_patches(self) -> int:
        """Patches in an image of `size`: N in the paper (arXiv:2010.11929, section 3.1)."""
        return self.grid[0] * self.grid[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Learned tokens before the patches: class, distillation, registers."""
        return self._num_slot_tokens + self.num_registers

    @property
    def num_tokens(self) -> int:
        """Tokens of an image of `size`, with the prefix: n in attention."""
        return self.num_prefix_tokens + self.num_patches

    @property
    def num_position_slots(self) -> int:
        """Entries of a learned position table before those of the patches."""
        return self._num_slot_tokens if self.pos_embed_class_slot else 0

    @property
    def num_positions(self) -> int:
        """Entries of a learned position table."""
        return self.num_position_slots + self.num_patches

    @property
    def mlp_hidden_width(self) -> int:
        """Output width of the first layer of each MLP: twice `mlp_dim` if gated."""
        return gated_width(self.mlp_dim, self.activation)

    @property
    def num_features(self) -> int:
        """Input width of the head, after pooling, the projection and the tanh layer."""
        projection = (self.cosine or {}).get("projection")
        return projection or self.representation_size or self.pooled_width

    @property
    def pooled_width(self) -> int:
        """Width after pooling; "cls_gap" concatenates class token and mean."""
        return 2 * self.width if self.pool == "cls_gap" else self.width

    @property
    def _num_slot_tokens(self) -> int:
        return int(self.class_token) + int(self.distillation_token)

    def to_dict(self) -> JsonObject:
        """Plain JSON types, with the architecture's name."""
        stem = None if self.stem_depths is None else list(self.stem_depths)
        values = {**asdict(self), "image_size": list(self.size), "stem_depths": stem}
        if not self.variant:
            del values["variant"]
        return {"architecture": "vit", **values}


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Architecture of a BiT ResNet-v2 (arXiv:1912.11370). Defaults are R50x1 at 224 pixels."""

    image_size: int | tuple[int, int] = 224
    """Recorded image size in pixels, one side or (height, width); any size is accepted."""
    in_channels: int = 3
    """Channels of the input images."""
    num_classes: int = 1000
    """Outputs of the head; 0 builds a backbone that returns pooled features."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Bottleneck blocks in each stage."""
    width_factor: int = 1
    """Multiplies every channel count; "x3" in R101x3."""
    ws_mode: WsMode = "google_bit"
    """Epsilons of the standardised convolutions and GroupNorms."""

    def __post_init__(self) -> None:
        check_kinds(self)
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_whole(self, ["in_channels", "width_factor"], 1)
        check_whole(self, ["num_classes"], 0)
        object.__setattr__(self, "depths", as_depths("depths", self.depths, 1))

    @property
    def size(self) -> tuple[int, int]:
        """`image_size` as (height, width) in pixels."""
        return as_size(self.image_size)

    @property
    def root_channels(self) -> int:
        """Channels of the first convolution, and of the 3x3 convolutions of the first stage."""
        return ROOT_CHANNELS * self.width_factor

    @property
    def stage_channels(self) -> list[int]:
        """Output channels of each stage."""
        return [4 * self.root_channels * 2**s for s in range(len(self.depths))]

    def to_dict(self) -> JsonObject:
        """Plain JSON types, with the architecture's name."""
        values = {**asdict(self), "image_size": list(self.size), "depths": list(self.depths)}
        return {"architecture": "resnet", **values}
