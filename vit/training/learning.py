"""Choice of the parameters that learn, and of their rates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from vit.errors import ABOVE_ZERO, UserError, check_range
from vit.models.zoo import Model
from vit.weights.report import LoadReport


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The parameters that learn, and their rates."""

    layer_decay: float = 1.0
    """Factor on the learning rate from each layer to the one below it, in (0, 1]."""

    freeze_backbone: bool = False
    """Trains the head only (a linear probe); the rest stays in evaluation mode."""

    def __post_init__(self) -> None:
        check_range("learning.layer_decay", self.layer_decay, ABOVE_ZERO)


class Adaptation(ABC):
    """Parameters that are trained beside the weights of a network, in place of these."""

    @abstractmethod
    def apply(self, network: Model) -> None:
        """Freezes all weights but those of the head and adds the parameters, in place."""

    @abstractmethod
    def merge(self, network: Model) -> None:
        """Ends the training: adds what was trained to the weights, in place."""


@torch.no_grad()
def begin(
    network: Model,
    report: LoadReport | None,
    learning: Learning,
    adaptation: Adaptation | None,
    head_bias: float | None,
) -> None:
    """Sets which parameters learn, and the bias of new rows of the head unless it is None.

    UserError for an adaptation of random weights, or of frozen ones.
    """
    if learning.freeze_backbone:
        network.requires_grad_(False)
    if adaptation is not None:
        if report is None or learning.freeze_backbone:
            raise UserError("model.adaptation needs model.pretrained, and no freeze_backbone")
        adaptation.apply(network)
    fresh = torch.ones(network.config.num_classes, dtype=torch.bool)
    if report is not None:
        fresh[report.known_rows if report.reinitialised else slice(None)] = False
    for layer in network.head_layers:
        layer.requires_grad_(True)
        if head_bias is not None:
            layer.get_parameter("bias")[fresh] = head_bias
