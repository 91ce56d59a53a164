"""A network's units are its residual blocks and itself."""

import pytest
from torch import nn

from tests.models.small_models import small_bit, small_hybrid, small_vit
from vit.models.units import sharded_units


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (small_vit(), [f"blocks.{i}" for i in range(3)]),
        (
            small_hybrid(),
            [f"patch_embed.backbone.stages.{s}.blocks.0" for s in range(3)]
            + [f"blocks.{i}" for i in range(2)],
        ),
        (
            small_bit(depths=(1, 2)),
            [f"stages.{i}.blocks.{j}" for i, j in [(0, 0), (1, 0), (1, 1)]],
        ),
    ],
)
def test_units_are_the_blocks_in_order_and_the_network(
    network: nn.Module, names: list[str]
) -> None:
    *blocks, last = sharded_units(network)
    assert last is network
    assert blocks == [network.get_submodule(name) for name in names]
