"""Alternating models: one path for `vit bench` and `vit compare --measure`."""

from typing import Any

import pytest
import torch

from tests.compute.conftest import shallow_candidate
from tests.compute.test_machine import machine
from vit.compute import bench as bench_module
from vit.compute import steps
from vit.compute.bench import Bench
from vit.compute.throughput import Way, Workbench, out_of_memory
from vit.console import Meter
from vit.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names on the meter, in order."""
    lines: list[str] = []
    monkeypatch.setattr(Meter, "show", lambda self, name: lines.append(name))
    return lines


def test_models_take_turns_and_the_first_round_does_not_count(shown: list[str]) -> None:
    models = [shallow_candidate("vit_ti16", (s, s)) for s in (32, 64)]
    measured = machine(batch_size=2, repetitions=2).measure(
        models, [m.memory("fp32") for m in models]
    )
    turns = [line for line in shown if ":" in line]
    assert [line.split(":")[0] for line in turns] == [
        turn for turn in ("warming up", "round 1/2", "round 2/2") for _ in range(4)
    ]
    assert [line.split(" at ")[1].split(", fp32")[0] for line in turns] == [
        f"{size}x{size} px, {what}"
        for _ in range(3)
        for size in (32, 64)
        for what in ("inference", "training")
    ]
    for one in measured:
        assert len(one.inference.values) == len(one.training.values) == 2
        assert min(one.inference.values + one.training.values) > 0
        assert one.peak is None  # not reported by a CPU


def test_a_model_that_is_named_twice_is_measured_twice() -> None:
    model = shallow_candidate("vit_ti16", (32, 32))
    first, second = machine(batch_size=1, repetitions=1).measure(
        2 * [model], 2 * [model.memory("fp32")]
    )
    assert first.training.values != second.training.values


def test_both_commands_time_the_same_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    precisions = []

    def counted(model: torch.nn.Module, images: torch.Tensor, precision: str) -> torch.Tensor:
        precisions.append(precision)
        return model(images).sum()

    monkeypatch.setattr(steps, "training_loss", counted)
    model = shallow_candidate("vit_ti16", (32, 32))
    machine(batch_size=1, repetitions=1).measure([model], [model.memory("fp32")])
    of_compare = len(precisions)
    monkeypatch.setattr(bench_module, "find_model", lambda name, size: model)
    options: dict[str, Any] = {"batch_sizes": (1,), "precisions": ("fp32",), "rounds": 1}
    Bench(models=["any"], what="training", device="cpu", **options).run()
    assert of_compare > 0 and len(precisions) > of_compare


def test_batches_share_a_network_and_its_moments() -> None:
    model = shallow_candidate("vit_ti16", (32, 32))
    ways = [Way(model=model, what="training", batch_size=n, precision="fp32") for n in (1, 2)]
    bench = Workbench(CPU)
    one, two = (bench.call(way) for way in ways)
    assert one.func is two.func  # pyright: ignore[reportFunctionMemberAccess]
    assert bench.network(ways[0]) is bench.network(ways[1])


def test_inference_of_a_network_in_training_follows_its_weights() -> None:
    model = shallow_candidate("vit_ti16", (32, 32))
    options: dict[str, Any] = {"model": model, "batch_size": 2, "in_training": True}
    infer = Way(what="inference", precision="fp32", **options)
    train = Way(what="training", precision="fp32", **options)
    bench = Workbench(CPU)
    network = bench.network(train)
    assert bench.network(infer) is network
    answer: Any = bench.call(infer)
    before = answer()
    with torch.no_grad():
        network.get_submodule("head").bias.fill_(3.0)  # pyright: ignore
    torch.testing.assert_close(answer(), before + 3.0)
    assert not network.training
    bench.call(train)()
    assert network.training and all(p.grad is None for p in network.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_finished_model_runs_in_the_dtype_of_its_weights(precision: str) -> None:
    way = Way(
        model=shallow_candidate("vit_ti16", (32, 32)),
        what="inference",
        batch_size=1,
        precision=precision,
    )
    answer: Any = Workbench(CPU).call(way)()
    assert answer.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


def test_too_little_memory_names_the_batch_and_other_errors_pass() -> None:
    with pytest.raises(UserError, match="a toy ran out of memory with --batch-size 7: choose"):
        with out_of_memory("a toy", 7):
            raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="shapes"):
        with out_of_memory("a toy", 7):
            raise RuntimeError("shapes do not match")
