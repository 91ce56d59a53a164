"""Text towers of CLIP and SigLIP from the encoder's own layers.

Shapes: b texts, n tokens, d width, p features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.models.config import ViTConfig
from vit.models.encoder import Place
from vit.models.vision_transformer import plain_layers
from vit.shapes import Float, Int


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Sizes of a text tower, and how it reads."""

    layers: ViTConfig
    """Width, depth, heads, MLP, activation and epsilon; num_classes are the features, p."""
    vocabulary: int
    """Rows of the table of tokens."""
    context: int
    """Positions: tokens of a text, with padding."""
    end: int | None
    """CLIP, causal: the id at whose first place a text is read; -1 reads the largest id. SigLIP, in
    which all tokens see each other, padding too: None, the last place."""


class TextTower(nn.Module):
    """Tokens -> features `b p`, before the division by their norm (CLIP, arXiv:2103.00020, section
    2.4; SigLIP, arXiv:2303.15343)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config, layers, width = config, config.layers, config.layers.width
        self.token_embed = nn.Embedding(config.vocabulary, width)
        self.pos_embed = nn.Parameter(torch.zeros(config.context, width))
        self.blocks = nn.ModuleList(plain_layers(layers))
        self.norm = nn.LayerNorm(width, eps=layers.layer_norm_eps)
        self.head = nn.Linear(width, layers.num_classes)

    def forward(self, ids: Int[Tensor, "b n"]) -> Float[Tensor, "b p"]:
        """Features of texts of at most `context` tokens; SigLIP's have exactly so many."""
        ends = self._ends(ids)
        if self.config.end is not None:  # tokens after the end are seen by none before it
            ids = ids[:, : int(ends.max()) + 1]
        length = ids.shape[1]
        x = self.token_embed(ids) + self.pos_embed[:length]
        place = Place(1, length, 0, bias=self._hidden(length, x))
        for block in self.blocks:
            x = block(x, place)
        return self.head(self.norm(x[torch.arange(len(ids)), ends]))

    def _hidden(self, length: int, like: Tensor) -> Tensor | None:
        """-inf where a query must not see a key, which comes after it."""
        if self.config.end is None:
            return None
        mask = like.new_full((length, length), -torch.inf)
        return mask.triu(1)[None, None]

    def _ends(self, ids: Tensor) -> Tensor:
        """The place of each text at which it is read."""
        end = self.config.end
        if end is None:
            return torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)
        return (ids if end < 0 else (ids == end).int()).argmax(1)
