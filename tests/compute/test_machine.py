"""The machine that models are measured on."""

from dataclasses import replace
from typing import Any

from vit.compute.machine import Machine
from vit.compute.memory import GIB


def machine(**changes: Any) -> Machine:
    here = Machine(
        type="cpu", name="a toy", memory=8 * GIB, limit=None, precision="fp32", batch_size=8,
        repetitions=1, known=None,
    )  # fmt: skip
    return replace(here, **changes)


def test_autocast_differs_between_a_cpu_and_a_gpu() -> None:
    assert machine(precision="bf16").rule == "bf16-cpu"
    assert machine(precision="bf16", type="cuda").rule == "bf16"
    assert [machine(type=kind).tries for kind in ("cpu", "cuda")] == [False, True]
