"""The parts of a network that are sharded among processes one by one."""

from torch import nn

from vit.models.encoder import Block
from vit.models.resnet import PostActBottleneck, PreActBottleneck


def sharded_units(network: nn.Module) -> list[nn.Module]:
    """The residual blocks, in the order of a pass, then the network, which holds the rest.

    A process has a unit whole only while it computes with it.
    """
    kinds = (Block, PreActBottleneck, PostActBottleneck)
    return [*(part for part in network.modules() if isinstance(part, kinds)), network]
