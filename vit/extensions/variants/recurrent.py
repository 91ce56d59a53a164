"""Recurrent networks over the sequence of tokens: each step waits for the one before it.

Shapes: b batch, m tokens, d width, which is also that of the state.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vit.extensions.variants.mixing import SequenceMixer, check_pooled
from vit.extensions.variants.options import Options
from vit.models.config import ViTConfig
from vit.shapes import Float

CELLS: dict[str, tuple[Any, Any]] = {
    "rnn": (nn.RNN, torch.rnn_tanh),
    "lstm": (nn.LSTM, torch.lstm),
    "gru": (nn.GRU, torch.gru),
}


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions(Options):
    """Options of recurrent networks."""

    two_way: bool = True
    """A second network reads the tokens from the last to the first."""


class Recurrent(SequenceMixer):
    """A state per way, from 0, then a matrix from the states of a token to its output.

    With W and U of a gate, x_t a token and h_t a state (both biases are left out here):
    rnn (Elman, 1990): h_t = tanh(W x_t + U h_t-1).
    lstm (Hochreiter and Schmidhuber, 1997; with forget gates, Gers et al., 2000): c_t = f c_t-1 +
    i tanh(W x_t + U h_t-1), h_t = o tanh(c_t), where i, f and o are sigmoids of such sums.
    gru (arXiv:1406.1078, equations 5 to 8, as cuDNN has them): h_t = (1 - z) tanh(W x_t + r U
    h_t-1) + z h_t-1, where r and z are sigmoids of such sums.
    Parameters and equations are those of `torch.nn`. Cost: with 1, 4 or 3 gates (2 gates + 1) m d^2
    multiply-adds a way, in m steps. PyTorch counts them on the meta device, and none on a CPU where
    oneDNN computes an LSTM.
    """

    def __init__(
        self, options: RecurrentOptions, config: ViTConfig, layer: int, *, cell: str
    ) -> None:
        ways, d = 1 + options.two_way, config.width
        if not options.two_way:
            check_pooled(config)
        super().__init__(config, ways * d)
        self.ways, self.width, self.cell = ways, d, cell
        network = CELLS[cell][0](d, d, bidirectional=options.two_way)
        for name, parameter in network.named_parameters():
            self.register_parameter(name, parameter)

    def mixed(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m h"]:
        # The function, as torch.compile does not take PyTorch's modules.
        state: Any = x.new_zeros(self.ways, x.shape[0], self.width)
        state = (state, state) if self.cell == "lstm" else state
        weights = [*self._parameters.values()]
        options = (True, 1, 0.0, self.training, self.ways == 2, True)
        return CELLS[self.cell][1](x, state, weights, *options)[0]

    def init_weights(self) -> None:
        """Draws weights as PyTorch does: uniform within 1 / sqrt(d)."""
        super().init_weights()
        bound = self.width**-0.5
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)


rnn, lstm, gru = (partial(Recurrent, cell=cell) for cell in CELLS)
