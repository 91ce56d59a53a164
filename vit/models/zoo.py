"""Table of the named models: sizes and parameter counts."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from vit.errors import UserError, did_you_mean, shorten, some_of
from vit.models.config import ResNetConfig, Rotary, ViTConfig
from vit.tables import resolve, rows

if TYPE_CHECKING:
    from vit.models.resnet import ResNet
    from vit.models.vision_transformer import VisionTransformer

ModelConfig: TypeAlias = ViTConfig | ResNetConfig
Model: TypeAlias = "VisionTransformer | ResNet"


class Builder(Protocol):
    """Builds a Vision Transformer that a field of its configuration changes: a row of the table
    `builders`, under the field's name. Rows are asked in order."""

    def __call__(
        self, config: ViTConfig, model: "VisionTransformer | None", /
    ) -> "VisionTransformer":
        """A model with fresh weights, or that of the rows before, changed. UserError for a value
        of the field that it cannot build."""
        ...


@dataclass(frozen=True)
class Entry:
    """A named architecture."""

    config: ModelConfig
    num_params: int
    """Parameter count with 1000 classes at 224 pixels, without a tanh layer before the head."""
    source: str
    """Publication of the sizes."""


# Width, depth, mlp_dim and num_heads of the Transformers.
_SIZES = {
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "H": (1280, 32, 5120, 16),
    "giant": (1408, 40, 6144, 16),
    # DINOv2's ViT-g, whose MLP is gated (hidden width 4096), with heads of 64.
    "g": (1536, 40, 4096, 24),
    "gigantic": (1664, 48, 8192, 16),
    # DINOv3's, of which H+, S+ and 7B have a gated MLP.
    "H+": (1280, 32, 5120, 20),
    "7B": (4096, 40, 8192, 32),
}


def _vit(
    size: str, patch_size: int, stem_depths: tuple[int, ...] | None = None, **fields: Any
) -> ViTConfig:
    width, depth, mlp_dim, num_heads = _SIZES[size]
    return ViTConfig(
        patch_size=patch_size,
        width=width,
        depth=depth,
        mlp_dim=mlp_dim,
        num_heads=num_heads,
        stem_depths=stem_depths,
        **fields,
    )


def _deit(size: str, **fields: Any) -> ViTConfig:
    return _vit(size, 16, activation="gelu", pos_resize="bicubic_antialias", **fields)


def _deit3(size: str, patch_size: int) -> ViTConfig:
    return _vit(
        size,
        patch_size,
        activation="gelu",
        pos_resize="bicubic_antialias",
        pos_embed_class_slot=False,
        layer_scale=1e-5,
    )


def _dinov2(size: str, num_registers: int) -> ViTConfig:
    return _vit(
        size,
        14,
        activation="swiglu" if size == "g" else "gelu",
        # Files with registers say so themselves (interpolate_offset=0, antialias).
        pos_resize="bicubic_antialias" if num_registers else "bicubic_offset",
        layer_scale=1e-5,
        num_registers=num_registers,
    )


def _dinov3(size: str, *, gated: bool = False) -> ViTConfig:
    return _vit(
        size,
        16,
        activation="swiglu" if gated else "gelu",
        pos_embed="none",
        rotary=Rotary(rescale=2.0),
        layer_scale=1e-5,
        layer_norm_eps=1e-5,
        num_registers=4,
    )


def _bit(width_factor: int, *depths: int) -> ResNetConfig:
    return ResNetConfig(depths=depths, width_factor=width_factor)


_PAPER = "arXiv:2010.11929, Table 1"
_AUGREG = "arXiv:2106.10270, Table 2"
_SCALING = "arXiv:2106.04560, Table 2"
_HYBRID = "arXiv:2010.11929, section 4.1 and Table 6"
_BIT = "arXiv:1912.11370, section 3.1"
_BASELINE = "arXiv:2010.11929, Table 6"
_DEIT = "arXiv:2012.12877, Table 1"
_DEIT3 = "arXiv:2204.07118, section 3"
_DINOV2 = "arXiv:2304.07193, appendix B"
_DINOV3 = "arXiv:2508.10104, Tables 1 and 2"
_REGISTERS = "arXiv:2309.16588, section 2.2"

ZOO: dict[str, Entry] = {
    "vit_ti16": Entry(_vit("Ti", 16), 5_717_416, _AUGREG),
    "vit_s16": Entry(_vit("S", 16), 22_050_664, _AUGREG),
    "vit_s32": Entry(_vit("S", 32), 22_878_952, _AUGREG),
    "vit_b16": Entry(_vit("B", 16), 86_567_656, _PAPER),
    "vit_b32": Entry(_vit("B", 32), 88_224_232, _PAPER),
    "vit_l16": Entry(_vit("L", 16), 304_326_632, _PAPER),
    "vit_l32": Entry(_vit("L", 32), 306_535_400, _PAPER),
    "vit_h14": Entry(_vit("H", 14), 632_045_800, _PAPER),
    # ViT-g/14 and ViT-G/14 there; names here are case-insensitive.
    "vit_giant14": Entry(_vit("giant", 14), 1_012_611_432, _SCALING),
    "vit_gigantic14": Entry(_vit("gigantic", 14), 1_844_440_680, _SCALING),
    # The name counts only 2 of the root's stride of 4; the token stride is 32 pixels.
    "r_vit_ti16": Entry(_vit("Ti", 32, ()), 6_337_704, _AUGREG),
    "r26_vit_s32": Entry(_vit("S", 32, (2, 2, 2, 2)), 36_431_912, _AUGREG),
    # At /16 the third stage includes the fourth stage's blocks (section 4.1 of the paper).
    "r50_vit_b16": Entry(_vit("B", 16, (3, 4, 9)), 98_659_112, _HYBRID),
    "r50_vit_b32": Entry(_vit("B", 32, (3, 4, 6, 3)), 110_945_832, _HYBRID),
    "r50_vit_l16": Entry(_vit("L", 16, (3, 4, 9)), 316_483_624, _HYBRID),
    "r50_vit_l32": Entry(_vit("L", 32, (3, 4, 6, 3)), 328_994_856, _AUGREG),
    "bit_r50x1": Entry(_bit(1, 3, 4, 6, 3), 25_549_352, _BIT),
    "bit_r50x2": Entry(_bit(2, 3, 4, 6, 3), 97_988_712, _BASELINE),
    "bit_r50x3": Entry(_bit(3, 3, 4, 6, 3), 217_319_080, _BIT),
    "bit_r101x1": Entry(_bit(1, 3, 4, 23, 3), 44_541_480, _BIT),
    "bit_r101x3": Entry(_bit(3, 3, 4, 23, 3), 387_934_888, _BIT),
    "bit_r152x1": Entry(_bit(1, 3, 8, 36, 3), 60_185_128, _BASELINE),
    "bit_r152x2": Entry(_bit(2, 3, 8, 36, 3), 236_335_208, _BIT),
    "bit_r152x4": Entry(_bit(4, 3, 8, 36, 3), 936_533_224, _BIT),
    "bit_r200x3": Entry(_bit(3, 3, 24, 36, 3), 568_633_000, _BASELINE),
    # As ViT, with the exact GELU.
    "deit_ti16": Entry(_deit("Ti"), 5_717_416, _DEIT),
    "deit_s16": Entry(_deit("S"), 22_050_664, _DEIT),
    "deit_b16": Entry(_deit("B"), 86_567_656, _DEIT),
    "deit_ti16_distilled": Entry(_deit("Ti", distillation_token=True), 5_910_800, _DEIT),
    "deit_s16_distilled": Entry(_deit("S", distillation_token=True), 22_436_432, _DEIT),
    "deit_b16_distilled": Entry(_deit("B", distillation_token=True), 87_338_192, _DEIT),
    "deit3_s16": Entry(_deit3("S", 16), 22_059_496, _DEIT3),
    "deit3_b16": Entry(_deit3("B", 16), 86_585_320, _DEIT3),
    "deit3_l16": Entry(_deit3("L", 16), 304_374_760, _DEIT3),
    "deit3_h14": Entry(_deit3("H", 14), 632_126_440, _DEIT3),
    "dinov2_s14": Entry(_dinov2("S", 0), 22_013_800, _DINOV2),
    "dinov2_b14": Entry(_dinov2("B", 0), 86_493_928, _DINOV2),
    "dinov2_l14": Entry(_dinov2("L", 0), 304_252_904, _DINOV2),
    "dinov2_g14": Entry(_dinov2("g", 0), 1_136_306_664, _DINOV2),
    "dinov2_s14_reg4": Entry(_dinov2("S", 4), 22_015_336, _REGISTERS),
    "dinov2_b14_reg4": Entry(_dinov2("B", 4), 86_497_000, _REGISTERS),
    "dinov2_l14_reg4": Entry(_dinov2("L", 4), 304_257_000, _REGISTERS),
    "dinov2_g14_reg4": Entry(_dinov2("g", 4), 1_136_312_808, _REGISTERS),
    # With the zero biases of queries, keys and values, 3 x width x depth, that timm leaves out.
    "dinov3_s16": Entry(_dinov3("S"), 21_985_768, _DINOV3),
    "dinov3_s16_plus": Entry(_dinov3("S", gated=True), 29_082_088, _DINOV3),
    "dinov3_b16": Entry(_dinov3("B"), 86_437_864, _DINOV3),
    "dinov3_l16": Entry(_dinov3("L"), 304_178_152, _DINOV3),
    "dinov3_h16_plus": Entry(_dinov3("H+", gated=True), 841_913_320, _DINOV3),
    "dinov3_7b16": Entry(_dinov3("7B", gated=True), 6_720_619_496, _DINOV3),
}


def list_models(pattern: str = "*") -> list[str]:
    """Names of the models that match a shell-style pattern such as "vit_b*"."""
    return [name for name in ZOO if fnmatchcase(name, pattern)]


def _key(name: str) -> str:
    """Letters and digits of a name, with the paper's Table 6 spellings unified."""
    text = re.sub(r"[^a-z0-9]", "", name.lower()).replace("resnet", "r")
    text = re.sub(r"^(r\d+)x1(?=vit)", r"\1", text)  # R50x1+ViT-B/16
    return re.sub(r"^(?=r\d+x\d+$)", "bit", text)  # ResNet50x1


def canonical_name(name: str) -> str:
    """'ViT-B/16' and 'vit_b_16' are vit_b16, 'R50+ViT-B/16' r50_vit_b16, 'BiT-R50x1' bit_r50x1.

    UserError lists the nearest known names.
    """
    by_key = {_key(entry): entry for entry in ZOO}
    if not isinstance(name, str):
        raise UserError(
            f"the name of a model is text, such as 'vit_b16', and not of type {type(name).__name__}"
        )
    if _key(name) not in by_key:
        known = f"; known: {some_of(ZOO, 8)} (`vit models` lists them)"
        hint = did_you_mean(name.lower(), ZOO) or known
        raise UserError(f"unknown model {shorten(name)!r}{hint}")
    return by_key[_key(name)]


def config_from_dict(values: Any) -> ModelConfig:
    """Inverse of a configuration's `to_dict`; "architecture" selects the class."""
    kinds: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig}
    if not isinstance(values, dict):
        raise UserError(f"model={shorten(values)} is not an object of fields")
    architecture = values.get("architecture", "vit")
    if not isinstance(architecture, str) or architecture not in kinds:
        raise UserError(
            f"architecture={shorten(repr(architecture))} is not one of {', '.join(kinds)}"
        )
    if architecture == "resnet" and values.get("variant"):
        raise UserError(
            f"variant={shorten(repr(values['variant']))} changes a Vision Transformer, and this "
            "model has no attention: name a ViT or a hybrid, or leave it out"
        )
    return kinds[architecture].from_dict(values)


def model_config(name: str, **overrides: Any) -> ModelConfig:
    """The configuration of a named model with other values in some fields."""
    config = ZOO[canonical_name(name)].config
    return config_from_dict({**config.to_dict(), **overrides})


def build_model(config: ModelConfig) -> Model:
    """A model with fresh weights."""
    # Imported here, so that `vit models` reads the table without torch.
    from vit.models.resnet import ResNet
    from vit.models.vision_transformer import VisionTransformer

    if isinstance(config, ResNetConfig):
        return ResNet(config)
    model = None
    for field, row in rows("builders").items():
        if getattr(config, field, None):
            build: Builder = resolve(row)
            model = build(config, model)
    return VisionTransformer(config) if model is None else model
