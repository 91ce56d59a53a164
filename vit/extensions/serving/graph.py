"""A model with its preprocessing as one graph: pixels in, named tensors out.

Shapes: b batch, c channels, h w pixels, k classes, d features, gh gw patches.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vit.extensions.backbones.contract import set_input_size
from vit.extensions.formats.rotary import KeylessBias, RotaryEmbedding
from vit.models.encoder import Rotation
from vit.models.resnet import StdConv2d
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.preprocessing import Preprocess


class Graph(nn.Module):
    """uint8 `b h w c` (float32, if the images are not RGB) -> the tensors of `names`.

    With a head: `logits` `b k`, `probabilities` `b k` of logits / temperature, with several
    labels an image also `labels` `b k` (bool, above the thresholds), and `features` `b d`, the
    head's input. Without one: `features` and `map` `b d gh gw`, the last layer's after the final
    norm.
    """

    def __init__(
        self,
        model: Model,
        preprocess: Preprocess,
        *,
        multilabel: bool = False,
        thresholds: list[float] | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = baked(model, preprocess.image_size)
        self.preprocess = preprocess
        self.multilabel = multilabel
        self.temperature = temperature
        cuts = torch.tensor(thresholds or [], dtype=torch.float64).logit() * temperature
        self.register_buffer("cuts", cuts.float())
        names = ["logits", "probabilities", *(["labels"] if multilabel else []), "features"]
        self.names = names if self.model.head_layers else ["features", "map"]

    def example(self, count: int) -> Tensor:
        """Black images of the graph's size and type."""
        kind = torch.uint8 if self.preprocess.channels is None else torch.float32
        channels = self.preprocess.channels or 3
        return torch.zeros(count, *self.preprocess.image_size, channels, dtype=kind)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        model: Any = self.model
        pixels = self.preprocess.normalize(images.permute(0, 3, 1, 2))
        tokens = model.forward_features(pixels.to(next(self.model.parameters()).dtype))
        features = model.forward_head(tokens, pre_logits=True)
        if not model.head_layers:
            return features, self._map(tokens)
        logits = model.forward_head(tokens)
        if not self.multilabel:
            return logits, (logits / self.temperature).softmax(-1), features
        # Of logits, as probabilities near 1 are equal in float32.
        return logits, (logits / self.temperature).sigmoid(), logits > self.cuts, features

    def _map(self, tokens: Tensor) -> Tensor:
        if not isinstance(self.model, VisionTransformer):
            return tokens
        patches = tokens[:, self.model.num_prefix_tokens :].transpose(1, 2)
        return patches.unflatten(2, self.model.config.grid)


class _Standardized(StdConv2d):
    """A convolution whose kernels are standardised already."""

    def standardized(self) -> Tensor:
        return self.weight


class _Table(nn.Module):
    """The rotation of one grid."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rotation: Rotation) -> None:
        super().__init__()
        self.register_buffer("cos", rotation.cos)
        self.register_buffer("sin", rotation.sin)

    def forward(self, grid: tuple[int, int], like: Tensor) -> Rotation:
        return Rotation(self.cos, self.sin)


@torch.no_grad()
def baked(model: Model, size: tuple[int, int]) -> Model:
    """A copy in evaluation mode, on the CPU in float32, for images of one size: what does not
    depend on the images (positions, rotations, standardised kernels) is computed once."""
    model = copy.deepcopy(model).eval().to("cpu", torch.float32).requires_grad_(False)
    if isinstance(model, VisionTransformer):
        set_input_size(model, size)
        if isinstance(model.rope, RotaryEmbedding):
            rotation = model.rope(model.config.grid, torch.empty(0))
            model.rope = _Table(rotation)
    for module in model.modules():
        if isinstance(module, StdConv2d):
            module.weight.copy_(module.standardized())
            module.__class__ = _Standardized
        elif isinstance(module, KeylessBias):
            module.bias.chunk(3)[1].zero_()
            module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
    return model
