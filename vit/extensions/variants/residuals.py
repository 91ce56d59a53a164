"""Residuals: the sum of a layer's input and its branches F, attention and MLP; their norms N.

The paper's layer is x + F(N(x)) with LayerNorm. Cost of all: no products. The norm after the last
layer is always LayerNorm.
"""

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.attending import Biased
from vit.extensions.variants.feedforward import NoMlp
from vit.extensions.variants.options import Change, Options
from vit.models.config import ViTConfig
from vit.models.encoder import Attention, Block, LayerScale, Mlp, Place
from vit.models.initialization import zero_
from vit.shapes import Float


class PostNorm(Block):
    """N(x + F(x)), the Transformer's own order (arXiv:1706.03762, section 3.1)."""

    def forward(self, x: Float[Tensor, "b n d"], place: Place) -> Float[Tensor, "b n d"]:
        x = self.norm1(x + self.drop_path1(self.ls1(self.attn(x, place))))
        return self.norm2(x + self.drop_path2(self.ls2(self.mlp(x))))


class NoResidual(Block):
    """F(N(x))."""

    def forward(self, x: Float[Tensor, "b n d"], place: Place) -> Float[Tensor, "b n d"]:
        x = self.ls1(self.attn(self.norm1(x), place))
        return self.ls2(self.mlp(self.norm2(x)))


class Fixup(Block):
    """x + s F(x) with F = 0 at first, without norms (arXiv:1901.09321, section 3, rules 1 to 3).

    The last matrix of a branch starts at 0, the other one of two is scaled by L^(-1/2) for L
    branches, and s, a number for each branch, starts at 1. The biases of the matrices, which the
    paper's networks do not have, include its scalar ones.
    """

    branches: int
    """L: two in each layer."""

    @torch.no_grad()
    def init_weights(self) -> None:
        super().init_weights()
        for first, last in ((self.attn.qkv, self.attn.proj), (self.mlp.fc1, self.mlp.fc2)):
            first.weight.mul_(self.branches**-0.5)
            zero_(last)


def post(options: Options, config: ViTConfig, layers: list[Block]) -> None:
    """Norms after the addition."""
    for layer in layers:
        layer.__class__ = PostNorm


def without(options: Options, config: ViTConfig, layers: list[Block]) -> None:
    """Layers without the addition. UserError where nothing would be left of an image."""
    if config.drop_path or any(isinstance(layer.mlp, NoMlp) for layer in layers):
        raise UserError(
            "variant.residual, none: nothing is left of an image whose branch is dropped or "
            "missing: set drop_path=0 and keep the MLP"
        )
    for layer in layers:
        layer.__class__ = NoResidual


def rezero(options: Options, config: ViTConfig, layers: list[Block]) -> None:
    """x + s F(x) without norms, where s starts at 0 (ReZero, arXiv:2003.04887, equation 1).

    A number for each branch, in the place of LayerScale; their code has one for both branches.
    """
    _scale("rezero", config, layers, 0.0)


def fixup(options: Options, config: ViTConfig, layers: list[Block]) -> None:
    """Layers of Fixup. UserError for branches that do not have two matrices."""
    if not all(type(x.attn) in (Attention, Biased) and isinstance(x.mlp, Mlp) for x in layers):
        raise UserError(
            "variant.residual, fixup: it scales the two matrices of attention and of an MLP: leave "
            "out variant.mixer, and mlp=none or experts"
        )
    _scale("fixup", config, layers, 1.0)
    for layer in layers:
        layer.__class__ = Fixup
        layer.branches = 2 * len(layers)  # pyright: ignore


def _scale(name: str, config: ViTConfig, layers: list[Block], initial: float) -> None:
    if config.layer_scale is not None:
        raise UserError(
            f"variant.residual, {name}, and layer_scale={config.layer_scale} both scale the "
            "branches: leave out one of them"
        )
    for layer in layers:
        layer.norm1 = layer.norm2 = nn.Identity()
        layer.ls1, layer.ls2 = LayerScale(1, initial), LayerScale(1, initial)


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + epsilon) times a learned gain (arXiv:1910.07467, equation 4)."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return super().forward(x.to(self.weight.dtype))  # torch has no kernel for two types


def normed(kind: type[nn.LayerNorm | RMSNorm]) -> Change:
    """Builds norms of this kind, also where the residual part has removed them."""

    def build(options: Options, config: ViTConfig, layers: list[Block]) -> None:
        for layer in layers:
            layer.norm1 = kind(config.width, eps=config.layer_norm_eps)
            if not isinstance(layer.mlp, NoMlp):
                layer.norm2 = kind(config.width, eps=config.layer_norm_eps)

    return build
