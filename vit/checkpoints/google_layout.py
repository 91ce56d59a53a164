"""Rules between our tensors and Google's, part by part. Flax keeps matrices as input x output.

Shapes: d width, h heads, e = d / h. Attention is stored by head: query, key and value `d h e`,
out `h e d`. Numbers of heads are only needed for writing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vit.checkpoints.layout import HWIO, SAME, TRANSPOSED, Op, Rule

_FLAT = Op(lambda t: t.flatten(), lambda t: (t,))
"""GroupNorm's vectors, which some files keep as 1 x 1 x 1 x c."""


def _by_head(num_heads: int, parts: int) -> tuple[Op, Op]:
    """Operations for the kernels and the biases of `parts` joined input projections."""

    def read_kernels(*kernels: Tensor) -> Tensor:  # d h e -> (parts h e) d
        return torch.cat([kernel.flatten(1).mT for kernel in kernels])

    def write_kernels(weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.mT.unflatten(1, (num_heads, -1)) for part in weight.chunk(parts))

    def read_biases(*biases: Tensor) -> Tensor:  # h e -> (parts h e)
        return torch.cat([bias.flatten() for bias in biases])

    def write_biases(bias: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.unflatten(0, (num_heads, -1)) for part in bias.chunk(parts))

    return Op(read_kernels, write_kernels), Op(read_biases, write_biases)


def _out(num_heads: int) -> Op:
    """The output projection: h e d -> d (h e)."""
    return Op(lambda t: t.flatten(0, 1).mT, lambda t: (t.mT.unflatten(0, (num_heads, -1)),))


def _projection(ours: str, base: str, names: Sequence[str], num_heads: int) -> list[Rule]:
    kernels, biases = _by_head(num_heads, len(names))
    return [
        Rule(f"{ours}.weight", tuple(f"{base}{name}/kernel" for name in names), kernels),
        Rule(f"{ours}.bias", tuple(f"{base}{name}/bias" for name in names), biases),
    ]


def _dense(ours: str, theirs: str, kernel: Op = TRANSPOSED) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", (f"{theirs}/kernel",), kernel),
        Rule(f"{ours}.bias", (f"{theirs}/bias",)),
    ]


def _norm(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> list[Rule]:
    op = SAME if "LayerNorm" in theirs or "encoder_norm" in theirs else _FLAT
    return [
        Rule(f"{ours}.weight", (f"{theirs}/{scale}",), op),
        Rule(f"{ours}.bias", (f"{theirs}/{bias}",), op),
    ]


def block_rules(
    i: int, base: str, attention: str, norm2: str, mlp: str, num_heads: int = 1
) -> list[Rule]:
    """Encoder layer `i`, whose keys start with `base`."""
    ours, attended = f"blocks.{i}", f"{base}{attention}/"
    return [
        *_norm(f"{ours}.norm1", f"{base}LayerNorm_0"),
        *_projection(f"{ours}.attn.qkv", attended, ("query", "key", "value"), num_heads),
        *_dense(f"{ours}.attn.proj", f"{attended}out", _out(num_heads)),
        *_norm(f"{ours}.norm2", f"{base}{norm2}"),
        *_dense(f"{ours}.mlp.fc1", f"{base}{mlp}/Dense_0"),
        *_dense(f"{ours}.mlp.fc2", f"{base}{mlp}/Dense_1"),
    ]


def head_rules() -> list[Rule]:
    """What surrounds the encoder, but for positions."""
    return [
        *_dense("patch_embed.proj", "embedding", HWIO),
        Rule("cls_token", ("cls",)),
        *_norm("norm", "Transformer/encoder_norm"),
        *_dense("pre_logits.fc", "pre_logits"),
        *_dense("head", "head"),
    ]


def map_rules(num_heads: int = 1) -> list[Rule]:
    """Attention pooling (big_vision, models/vit.py, MAPHead)."""
    base, ours = "MAPHead_0/", "attn_pool"
    attended = f"{base}MultiHeadDotProductAttention_0/"
    return [
        Rule(f"{ours}.latent", (f"{base}probe",)),
        *_projection(f"{ours}.q", attended, ("query",), num_heads),
        *_projection(f"{ours}.kv", attended, ("key", "value"), num_heads),
        *_dense(f"{ours}.proj", f"{attended}out", _out(num_heads)),
        *_norm(f"{ours}.norm", f"{base}LayerNorm_0"),
        *_dense(f"{ours}.mlp.fc1", f"{base}MlpBlock_0/Dense_0"),
        *_dense(f"{ours}.mlp.fc2", f"{base}MlpBlock_0/Dense_1"),
    ]


def stem_rules(depths: Sequence[int]) -> list[Rule]:
    """The hybrids' ResNet (vit_jax/models_resnet.py); stages and units count from 1 there."""
    stem = "patch_embed.backbone."
    root = f"{stem}stem." if depths else stem
    rules = [Rule(f"{root}conv.weight", ("conv_root/kernel",), HWIO)]
    rules += _norm(f"{root}norm", "gn_root")
    for s, depth in enumerate(depths):
        for b in range(depth):
            ours, theirs = f"{stem}stages.{s}.blocks.{b}.", f"block{s + 1}/unit{b + 1}/"
            for n in (1, 2, 3):
                rules.append(Rule(f"{ours}conv{n}.weight", (f"{theirs}conv{n}/kernel",), HWIO))
                rules += _norm(f"{ours}norm{n}", f"{theirs}gn{n}")
            if b == 0:
                rules.append(
                    Rule(f"{ours}downsample.conv.weight", (f"{theirs}conv_proj/kernel",), HWIO)
                )
                rules += _norm(f"{ours}downsample.norm", f"{theirs}gn_proj")
    return rules


def bit_rules(depths: Sequence[int]) -> list[Rule]:
    """BiT (bit_pytorch/models.py): units have two digits, their convolutions are a, b and c."""
    conv = "standardized_conv2d/kernel"
    rules = [
        Rule("stem.conv.weight", (f"resnet/root_block/{conv}",), HWIO),
        *_norm("norm", "resnet/group_norm", "gamma", "beta"),
        *_dense("head.fc", "resnet/head/conv2d", HWIO),
    ]
    for s, depth in enumerate(depths):
        for b in range(depth):
            ours, theirs = f"stages.{s}.blocks.{b}.", f"resnet/block{s + 1}/unit{b + 1:02d}/"
            for n, part in enumerate("abc", start=1):
                rules.append(Rule(f"{ours}conv{n}.weight", (f"{theirs}{part}/{conv}",), HWIO))
                rules += _norm(f"{ours}norm{n}", f"{theirs}{part}/group_norm", "gamma", "beta")
            if b == 0:
                rules.append(
                    Rule(f"{ours}downsample.conv.weight", (f"{theirs}a/proj/{conv}",), HWIO)
                )
    return rules
