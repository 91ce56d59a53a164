"""Convolutions over the sequence of tokens, with zeros around it.

Shapes: b batch, m tokens, d width, heads, e = d / heads channels that share a kernel, k tokens that
a kernel covers, the middle one being its own.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.mixing import SequenceMixer
from vit.extensions.variants.options import Options
from vit.models.config import ViTConfig
from vit.shapes import Float


@dataclass(frozen=True, kw_only=True)
class KernelOptions(Options):
    """Options of shared kernels."""

    kernel: int = 7
    """Tokens that a kernel covers, an odd number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise UserError(f"kernel={self.kernel} must be odd, so that its middle is a token")


@dataclass(frozen=True, kw_only=True)
class ConvolutionOptions(KernelOptions):
    """Options of convolutions."""

    depthwise: bool = False
    """A kernel for each channel, and then a matrix that mixes channels."""


class Convolution(SequenceMixer):
    """y_t = sum over j of W_j x_(t + j), full, or with diagonal W_j and a matrix after it.

    Full: ConvS2S (arXiv:1705.03122) without its gates. Depthwise: separable convolution
    (arXiv:1610.02357). Both are in Table 1 of arXiv:1706.03762. Cost: k m d^2 multiply-adds;
    depthwise k m d + m d^2.
    """

    def __init__(self, options: ConvolutionOptions, config: ViTConfig, layer: int) -> None:
        d, k = config.width, options.kernel
        super().__init__(config, d if options.depthwise else None)
        self.conv = nn.Conv1d(d, d, k, padding=k // 2, groups=d if options.depthwise else 1)

    def mixed(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        return self.conv(x.mT).mT

    def init_weights(self) -> None:
        super().init_weights()
        self.conv.reset_parameters()


class Lightweight(SequenceMixer):
    """Depthwise convolution with kernels that add up to 1, the same for the channels of a head.

    LightConv (arXiv:1901.10430, equations 3 and 4; section 3, figure 2b): a gated linear unit, y_tc
    = sum over j of softmax(W_h)_j x_(t + j)c for channel c of head h, a matrix. Cost: 3 m d^2 + k m
    d multiply-adds.
    """

    def __init__(self, options: KernelOptions, config: ViTConfig, layer: int) -> None:
        d = config.width
        super().__init__(config, d)
        self.heads, self.width = config.num_heads, options.kernel
        self.gate = nn.Linear(d, 2 * d)
        self.kernels = nn.Parameter(self._kernels(d))

    def _kernels(self, d: int) -> Tensor:
        return torch.zeros(self.heads, 1, self.width)

    def mixed(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        return self.convolved(F.glu(self.gate(x)))

    def convolved(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        """The convolution without gate and matrix."""
        d = x.shape[2]
        kernels = self.kernels.softmax(-1).repeat_interleave(d // self.heads, 0)
        return F.conv1d(x.mT, kernels, padding=self.width // 2, groups=d).mT

    def init_weights(self) -> None:
        """Kernels as in fairseq."""
        super().init_weights()
        nn.init.xavier_uniform_(self.kernels)


class Dynamic(Lightweight):
    """The same with kernels that each token computes: softmax(W_h x_t), `k` for each head.

    DynamicConv (arXiv:1901.10430, equation 5). Cost: 3 m d^2 + heads k m d + k m d multiply-adds.
    """

    def _kernels(self, d: int) -> Tensor:
        return torch.zeros(self.heads * self.width, d)

    def convolved(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        kernels = F.linear(x, self.kernels).unflatten(-1, (self.heads, -1, 1)).softmax(-2)
        taps = F.pad(x, (0, 0, self.width // 2, self.width // 2)).unfold(1, self.width, 1)
        return (taps.unflatten(2, (self.heads, -1)) @ kernels).flatten(2)
