"""Attention that scores, or sums, in another way than the paper's.

Shapes: b batch, m tokens, d width, heads, e channels per head.
"""

from torch import Tensor, nn

from vit.models.attention import attend
from vit.models.encoder import Attention, Place, rotated
from vit.shapes import Float


class Attending(Attention):
    """Attention with a step that subclasses replace: `attend`."""

    def forward(self, x: Float[Tensor, "b m d"], place: Place) -> Float[Tensor, "b m d"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # b m 3 heads e
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # b heads m e
        y = self.attend(rotated(q, place), rotated(k, place), v, place)
        return self.drop(self.proj(y.transpose(1, 2).flatten(2)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Float[Tensor, "b heads m e"]:
        """The heads' outputs of queries, keys and values, `b heads m e` each."""
        return attend(q, k, v, self.bias(q, place))

    def bias(self, q: Tensor, place: Place) -> Tensor | None:
        """Bias of the scores of queries `b heads m e`."""
        return place.bias


class Biased(Attending):
    """Attention whose scores get a bias from a module: `rel_pos`, of queries and their place."""

    rel_pos: nn.Module

    def bias(self, q: Tensor, place: Place) -> Tensor:
        bias = self.rel_pos(q, place)
        return bias if place.bias is None else bias + place.bias

    def init_weights(self) -> None:
        super().init_weights()
        self.rel_pos.init_weights()  # pyright: ignore[reportCallIssue]
