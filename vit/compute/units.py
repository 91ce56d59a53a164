"""Cost of a part of a network per image, from the shapes of its layers.

These are closed formulas without tensors, so that PyTorch's counters can check them independently
and `vit compare` does not import torch.
"""

from dataclasses import dataclass

from vit.errors import UserError, did_you_mean
from vit.models.config import PRODUCT_TOKENS

FLOAT = 4
"""Bytes of a float32: norm statistics, logits, and everything in full precision."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes per element kept for the backward pass, by use."""

    product: int
    """Input of a matrix product or convolution."""
    norm: int
    """Input of a norm, or output of the ReLU after it."""
    weights: int = 0
    """Cast copy of a weight; 0 if products read the weights directly."""
    attention_weights: bool = False
    """Whether attention keeps its weights (vit/models/attention.py)."""

    @property
    def mixed(self) -> bool:
        """Whether norms have higher precision than products, so that both save a copy."""
        return self.product != self.norm


# torch.autocast treats products and norms differently by device (ATen/autocast_mode.h,
# AT_FORALL_LOWER_PRECISION_FP; LayerNorm and GroupNorm are in AT_FORALL_FP32, for CUDA, only).
PRECISIONS = {
    "fp32": Precision(product=4, norm=4),
    "bf16": Precision(product=2, norm=4, weights=2),
    "bf16-cpu": Precision(product=2, norm=2, weights=2, attention_weights=True),
}
CHOICES = ("fp32", "bf16")
_ALIASES = {"32-true": "fp32", "float32": "fp32", "bf16-mixed": "bf16", "bfloat16": "bf16"}


def precision_name(name: str) -> str:
    """ "fp32" or "bf16" (mixed), also by the Trainer's spellings 32-true and bf16-mixed."""
    canonical = _ALIASES.get(name, name)
    if canonical not in CHOICES:
        names = [*CHOICES, *_ALIASES]
        hint = did_you_mean(name, names) or f"; choose {' or '.join(CHOICES)}"
        raise UserError(f"unknown precision {name!r}{hint}")
    return canonical


@dataclass(kw_only=True)
class Unit:
    """Layers that activation checkpointing saves or recomputes together."""

    name: str
    precision: Precision
    macs: int = 0
    """Multiply-adds of matrix products and convolutions in the forward pass, per image."""
    padding_macs: int = 0
    """Part of `macs` that multiplies padding zeros."""
    reads_pixels: bool = False
    """Whether the unit reads the image, whose gradient is not computed."""
    classifier_macs: int = 0
    """Part of `macs` in the head."""
    params: int = 0
    """Number of parameters."""
    kept: int = 0
    """Bytes per image that the forward pass keeps for the backward pass."""
    kept_once: int = 0
    """Bytes independent of the batch size: standardised kernels."""
    keeps_centred: bool = False
    """Whether a convolution saves its centred kernel in addition to the applied kernel."""
    input_kept: int | None = None
    """Bytes per image of the unit's input, which is saved if the unit is recomputed; None if
    `activation_checkpointing` does not apply."""
    shared: int = 0
    """Bytes per image of its input that `kept` of the previous unit already counts."""

    @property
    def training_macs(self) -> int:
        """Multiply-adds of the forward pass and of the gradients of input and weights.

        Like autograd, excludes the gradient of the image.
        """
        return (2 if self.reads_pixels else 3) * self.macs

    def keep(self, count: int, copies: int = 1) -> None:
        """Saves `count` elements per image as the input of a product."""
        self.kept += copies * count * self.precision.product

    def cast(self, count: int) -> None:
        """Saves a product's cast copy of what a norm or ReLU already saved; free without casts."""
        if self.precision.mixed:
            self.keep(count)

    def linear(self, count: int, inputs: int, outputs: int, *, bias: bool = True) -> None:
        """A dense layer on `count` vectors per image."""
        self.macs += count * inputs * outputs
        self.params += inputs * outputs + (outputs if bias else 0)

    def attention(self, queries: int, keys: int, width: int, num_heads: int) -> None:
        """softmax(q k^T) v of all heads. Fused kernels save one number per query, no weights."""
        self.macs += 2 * queries * keys * width
        self.keep(2 * queries * width + 2 * keys * width)  # q and the output, k and v
        if queries > 1 and self.keeps_weights(keys):
            self.keep(num_heads * queries * keys)
        else:
            self.kept += FLOAT * num_heads * queries

    def keeps_weights(self, tokens: int) -> bool:
        """Whether self-attention of this many tokens keeps its weights."""
        return self.precision.attention_weights and tokens <= PRODUCT_TOKENS

    def layer_norm(self, count: int, width: int, stream: int = 0) -> None:
        """LayerNorm of `count` vectors per image: saves its input, mean and deviation.

        `stream`: bytes per element of the input, which may exceed the norm's precision.
        """
        self.kept += count * (width * max(stream, self.precision.norm) + 2 * FLOAT)
        self.params += 2 * width

    def group_norm(self, count: int, channels: int) -> None:
        """GroupNorm (32 groups) of `count` positions."""
        self.kept += count * channels * self.precision.norm + 2 * 32 * FLOAT
        self.params += 2 * channels

    def conv(
        self, size: tuple[int, int], channels: tuple[int, int], kernel: int, stride: int, same: bool
    ) -> tuple[int, int]:
        """A weight-standardised convolution without bias on a map (h, w). Returns the output size.

        `same`: TensorFlow's SAME padding, otherwise kernel // 2 on every side.
        """
        out = tuple(-(-n // stride) for n in size)
        weights = channels[0] * channels[1] * kernel**2
        inside = 1
        for n, m in zip(size, out, strict=True):
            before = kernel // 2
            if same:
                before = max((m - 1) * stride + kernel - n, 0) // 2
            inside *= _taps(n, m, kernel, stride, before)
        macs = out[0] * out[1] * weights
        self.macs += macs
        self.padding_macs += macs - inside * channels[0] * channels[1]
        self.params += weights
        self.kept_once += weights * (FLOAT * self.keeps_centred + self.precision.product)
        return out[0], out[1]


def _taps(size: int, out: int, kernel: int, stride: int, before: int) -> int:
    """Pairs of output and kernel positions along one axis that hit a pixel, not padding."""
    starts = (i * stride - before for i in range(out))
    return sum(min(start + kernel, size) - max(start, 0) for start in starts)
