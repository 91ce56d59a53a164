"""What one image costs in a part of a network, added up from the shapes of its layers.

Nothing here has seen a tensor: the sums are closed formulas, so that PyTorch's own counters can
check them, and so that `vit compare` answers without importing torch.
"""

from dataclasses import dataclass

from vit.errors import UserError, did_you_mean

FLOAT = 4
"""Bytes of a float32: statistics of norms, logits, and everything in full precision."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes of a number that waits for the backward pass, by what is done with it."""

    product: int
    """As an input of a matrix product or convolution."""
    norm: int
    """As an input of a norm, or the output of the ReLU behind one."""
    weights: int = 0
    """Of the copies of weights that products read; 0 where they read the weights themselves."""

    @property
    def mixed(self) -> bool:
        """Whether norms work in more digits than products, so that both keep a copy."""
        return self.product != self.norm


# What torch.autocast does to products and norms differs by device (ATen/autocast_mode.h,
# AT_FORALL_LOWER_PRECISION_FP; LayerNorm and GroupNorm are in AT_FORALL_FP32, for CUDA, only).
PRECISIONS = {
    "fp32": Precision(product=4, norm=4),
    "bf16": Precision(product=2, norm=4, weights=2),
    "bf16-cpu": Precision(product=2, norm=2, weights=2),
}
CHOICES = ("fp32", "bf16")
_ALIASES = {"32-true": "fp32", "float32": "fp32", "bf16-mixed": "bf16", "bfloat16": "bf16"}


def precision_name(name: str) -> str:
    """ "fp32" or "bf16" (mixed), also by the Trainer's spellings 32-true and bf16-mixed."""
    found = _ALIASES.get(name, name)
    if found not in CHOICES:
        known = [*CHOICES, *_ALIASES]
        hint = did_you_mean(name, known) or f"; choose {' or '.join(CHOICES)}"
        raise UserError(f"unknown precision {name!r}{hint}")
    return found


@dataclass(kw_only=True)
class Unit:
    """Layers that activation checkpointing keeps or recomputes together."""

    name: str
    precision: Precision
    macs: int = 0
    """Multiply-adds of matrix products and convolutions in the forward pass, per image."""
    padding_macs: int = 0
    """Those of `macs` that multiply the zeros around a map."""
    reads_pixels: bool = False
    """Whether they read the image itself, whose gradient nobody asks for."""
    classifier_macs: int = 0
    """Those of `macs` in the layer that gives the logits."""
    params: int = 0
    """Learned numbers."""
    kept: int = 0
    """Bytes per image that the forward pass keeps for the backward pass."""
    kept_once: int = 0
    """Bytes kept whatever the batch: standardised kernels."""
    keeps_centred: bool = False
    """Whether a convolution keeps its kernel less its mean, beside the kernel that is applied."""
    input_kept: int | None = None
    """Bytes per image of the unit's input, all that is kept if it is recomputed; None where
    `activation_checkpointing` leaves the unit alone."""
    shared: int = 0
    """Bytes per image of its input that are in `kept` of the unit before, for both."""

    @property
    def training_macs(self) -> int:
        """Multiply-adds of forward and backward pass: a gradient of the input, one of the weights.

        The gradient of the image is left out, as autograd leaves it out.
        """
        return (2 if self.reads_pixels else 3) * self.macs

    def keep(self, count: int, copies: int = 1) -> None:
        """`count` numbers per image that a product will read again."""
        self.kept += copies * count * self.precision.product

    def cast(self, count: int) -> None:
        """A product's own copy of what a norm or ReLU has kept already; free in one precision."""
        if self.precision.mixed:
            self.keep(count)

    def linear(self, count: int, inputs: int, outputs: int, *, bias: bool = True) -> None:
        """A dense layer on `count` vectors an image."""
        self.macs += count * inputs * outputs
        self.params += inputs * outputs + (outputs if bias else 0)

    def attention(self, queries: int, keys: int, width: int, num_heads: int) -> None:
        """softmax(q k^T) v of all heads. Fused kernels keep no weights, only a number a query."""
        self.macs += 2 * queries * keys * width
        self.keep(2 * queries * width + 2 * keys * width)  # q and the output, k and v
        self.kept += FLOAT * num_heads * queries

    def layer_norm(self, count: int, width: int, stream: int = 0) -> None:
        """LayerNorm of `count` vectors an image: its input, mean and deviation are kept.

        `stream`: bytes of a number of the input, where they may be more than a norm asks for.
        """
        self.kept += count * (width * max(stream, self.precision.norm) + 2 * FLOAT)
        self.params += 2 * width

    def group_norm(self, count: int, channels: int) -> None:
        """GroupNorm (32 groups) of `count` positions, without what follows it."""
        self.kept += count * channels * self.precision.norm + 2 * 32 * FLOAT
        self.params += 2 * channels

    def conv(
        self, size: tuple[int, int], channels: tuple[int, int], kernel: int, stride: int, same: bool
    ) -> tuple[int, int]:
        """A weight-standardised convolution without bias on a map (h, w); the size of its output.

        `same`: TensorFlow's SAME padding, else kernel // 2 on every side.
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
    """Pairs of an output and a kernel position along one axis that meet a pixel, not padding."""
    starts = (i * stride - before for i in range(out))
    return sum(min(start + kernel, size) - max(start, 0) for start in starts)
