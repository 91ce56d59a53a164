"""Cost of a Vision Transformer or hybrid per unit, from its configuration.

Sources of the formulas: ViT (arXiv:2010.11929), equations 1-4 and appendix A. Letters: n tokens,
d width, m MLP.
"""

from vit.compute.convolutional import hybrid_stem
from vit.compute.units import FLOAT, Precision, Unit
from vit.models.config import ViTConfig


def transformer_units(config: ViTConfig, precision: Precision) -> list[Unit]:
    """Units for images of `config.size`: stem, embedding, layers, head with loss."""
    d = config.width
    n, patches = config.num_tokens, config.num_patches

    stem, embed = [], Unit(name="embedding", precision=precision)
    height, width = config.size
    side = config.patch_size // config.stem_stride
    if config.stem_depths is None:
        embed.keep(height * width * config.in_channels)
    else:
        stem = hybrid_stem(config, precision)
        count = patches * side**2 * config.stem_channels
        embed.cast(count)
        if not precision.mixed:
            # The ReLU of the last residual unit already saves it; pooling saves only its input.
            embed.shared = count * precision.product if config.stem_depths else 0
            embed.keep(0 if config.stem_depths else count)
    embed.linear(patches, side**2 * config.stem_channels, d)
    embed.reads_pixels = config.stem_depths is None
    embed.params += config.num_prefix_tokens * d
    if config.pos_embed == "learned":
        embed.params += config.num_positions * d
    embed.kept += _dropped(config, n * d)

    layers = [_layer(config, precision, n, i) for i in range(config.depth)]
    return [*stem, embed, *layers, _head(config, precision, n, patches)]


def _layer(config: ViTConfig, precision: Precision, n: int, index: int) -> Unit:
    """Equations 2 and 3: x + attention(norm(x)), x + mlp(norm(x))."""
    d, m = config.width, config.mlp_dim
    unit = Unit(name=f"layer {index + 1}", precision=precision)
    stream = _stream(config, precision, sums=2 * index)
    unit.input_kept = n * d * stream
    unit.layer_norm(n, d, stream)
    unit.keep(n * d)
    unit.linear(n, d, 3 * d)
    unit.attention(n, n, d, config.num_heads)
    if config.rotary is not None and not unit.keeps_weights(n):
        unit.keep(2 * n * d)  # turned queries and keys, beside the product that holds the values
    unit.linear(n, d, d)
    unit.kept += _dropped(config, n * d)
    unit.layer_norm(n, d, _stream(config, precision, sums=2 * index + 1))
    unit.keep(n * d)
    _mlp(unit, config, n)
    unit.kept += _dropped(config, n * (m + d))
    if config.layer_scale is not None:
        unit.params += 2 * d
        unit.keep(2 * n * d)
    return unit


def _stream(config: ViTConfig, precision: Precision, sums: int) -> int:
    """Bytes per element of the tokens between layers, after this many residual sums.

    LayerScale's factors are float32, and so are all later sums.
    """
    return precision.product if config.layer_scale is None or sums == 0 else FLOAT


def _mlp(unit: Unit, config: ViTConfig, n: int) -> None:
    """Two dense layers; saves the inputs of the activation and of the second layer."""
    d, m = config.width, config.mlp_dim
    unit.linear(n, d, config.mlp_hidden_width)
    # Gate, value, SiLU of the gate, and the product; or input and output of the GELU.
    unit.keep(n * m, copies=4 if config.activation == "swiglu" else 2)
    unit.linear(n, m, d)


def _dropped(config: ViTConfig, count: int) -> int:
    """Bytes of a dropout mask."""
    return count if config.dropout else 0


def _head(config: ViTConfig, precision: Precision, n: int, patches: int) -> Unit:
    """Final norm, pooling and head."""
    d, k = config.width, config.num_classes
    unit = Unit(name="head", precision=precision)
    norms = config.num_logit_layers if config.norm_after_pool else n
    stream = _stream(config, precision, sums=2 * config.depth)
    unit.layer_norm(norms, d, stream)
    cast = max(stream, precision.norm) != precision.product  # the head reads a separate copy
    if config.norm_after_pool:
        unit.keep(norms * d)
    elif config.pool == "cls" and not cast:
        unit.keep(n * d)  # of all tokens, though the head reads only one
    else:
        unit.keep(d)
    if config.pool == "map":
        _attention_pool(unit, config, patches)
    if config.pool == "cls_gap":
        unit.keep(config.pooled_width)
    if config.representation_size is not None:
        unit.linear(1, config.pooled_width, config.representation_size)
        unit.keep(config.representation_size)
    if k:
        for _ in range(config.num_logit_layers):
            unit.linear(1, config.num_features, k)
        unit.classifier_macs = config.num_logit_layers * config.num_features * k
        unit.kept += k * FLOAT  # the loss saves log-probabilities
    return unit


def _attention_pool(unit: Unit, config: ViTConfig, patches: int) -> None:
    """One learned query over all patches, then an MLP (arXiv:2106.04560, section 3.4)."""
    d = config.width
    unit.params += d
    unit.linear(1, d, d)
    unit.keep(patches * d)
    unit.linear(patches, d, 2 * d)
    unit.attention(1, patches, d, config.num_heads)
    unit.linear(1, d, d)
    unit.layer_norm(1, d)
    unit.keep(d)
    _mlp(unit, config, 1)
