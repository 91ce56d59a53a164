"""Counted memory of a device against torch's own partition and against what processes hold."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.extensions.compute import two_devices
from tests.extensions.compute.conftest import shallow_candidate
from tests.extensions.compute.two_devices import NETWORKS, PRECISIONS
from tests.processes import together
from vit.extensions.compute.devices import held
from vit.extensions.compute.timing import training_loss
from vit.weights.building import build_empty


@pytest.mark.parametrize("devices", [2, 3, 64])
@pytest.mark.parametrize("name", ["vit_ti16", "r26_vit_s32", "bit_r50x1"])
def test_a_device_has_the_first_chunk_of_every_parameter(name: str, devices: int) -> None:
    network = shallow_candidate(name).empty()
    rows = sum(p.chunk(devices)[0].numel() for p in network.parameters())
    kinds = held(network, "bf16", "fsdp2", devices, ema=True)
    del kinds["exchange"]
    factors = {"weights": 4, "gradients": 4, "optimizer": 8, "ema": 4}
    assert kinds == {kind: factor * rows for kind, factor in factors.items()}


@pytest.mark.parametrize(("precision", "weights"), [("fp32", 4), ("bf16", 6)])
def test_ddp_has_everything_on_every_device_and_buckets(precision: str, weights: int) -> None:
    network = shallow_candidate("vit_ti16").empty()
    count = sum(p.numel() for p in network.parameters())
    state = {"weights": weights * count, "gradients": 4 * count, "optimizer": 8 * count}
    assert held(network, precision, None, 1) == state
    for devices in (2, 64):
        assert held(network, precision, "ddp", devices) == {**state, "exchange": 4 * count}


def test_two_processes_hold_what_is_counted(tmp_path: Path) -> None:
    ends = together(2, tmp_path, two_devices.work, tmp_path)
    assert ends == [0, 0], (tmp_path / "0.err").read_text()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for name, config in NETWORKS.items():
        network = build_empty(config)
        for precision in PRECISIONS:
            kinds, other = held(network, precision, "fsdp2", 2), second[name][precision]
            del kinds["exchange"]
            assert first[name][precision] == kinds
            # The second process pads weights and gradients, but no moments.
            moments = kinds.pop("optimizer") + other.pop("optimizer")
            assert moments == 8 * sum(p.numel() for p in network.parameters())
            assert other == kinds


@pytest.mark.parametrize(
    ("name", "precision", "devices"),
    [*((name, "bf16", count) for name in NETWORKS for count in (2, 64)), ("vit", "fp32", 64)],
)
def test_no_more_is_gathered_at_one_time_than_is_counted(
    name: str, precision: str, devices: int, tmp_path: Path
) -> None:
    """Against torch's own tracker, in a process that sends nothing.

    A process of its own: what torch keeps of this mesh would be wrong for those that are forked
    from here later.
    """
    assert together(1, tmp_path, _gathers, name, precision, devices) == [0], (
        tmp_path / "0.err"
    ).read_text()


def _gathers(name: str, precision: str, devices: int) -> None:
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.testing._internal.distributed.fake_pg import FakeStore

    config = NETWORKS[name]
    counted = held(build_empty(config), precision, "fsdp2", devices)["exchange"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    network, images = two_devices.sharded(config, precision), torch.randn(1, 3, *config.size)
    tracker = FSDPMemTracker(network)
    tracker.track_inputs((images,))
    with tracker:
        training_loss(network, images, precision).backward()
    peak = {str(k): size for k, size in tracker.get_tracker_snapshot("peak")[images.device].items()}
    kept = ("SHARDED_PARAM", "SHARDED_GRAD", "ACT", "INP")
    exchanged = peak["Total"] - sum(peak[f"_FSDPRefType.{kind}"] for kind in kept)
    # At the peak of all memory; later, shards of gradients may weigh more than what is gathered.
    assert 0.8 * counted < exchanged <= counted
