"""A network's units are its residual blocks and itself."""

from tests.models.small_models import small_bit, small_hybrid, small_vit
from vit.models.units import sharded_units


def test_units_are_the_blocks_in_order_and_the_network() -> None:
    stem = [f"patch_embed.backbone.stages.{s}.blocks.0" for s in range(3)]
    for network, names in (
        (small_vit(), [f"blocks.{i}" for i in range(3)]),
        (small_hybrid(), [*stem, *(f"blocks.{i}" for i in range(2))]),
        (small_bit(depths=(1, 2)), [f"stages.{s}.blocks.{b}" for s, b in [(0, 0), (1, 0), (1, 1)]]),
    ):
        *blocks, last = sharded_units(network)
        assert last is network
        assert blocks == [network.get_submodule(name) for name in names]
