"""The machine of `vit compare --measure`: memory, speed, largest batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vit.compute.candidate import Candidate
from vit.compute.cost import Device, recognise_device
from vit.compute.flops import Work
from vit.compute.memory import (
    GIB,
    TrainingMemory,
    largest,
    measured_activations,
    measured_peak,
    trainable,
)
from vit.compute.throughput import ROUNDS, Way, Workbench, measure, out_of_memory
from vit.compute.timing import Times, num_turns
from vit.compute.units import precision_name
from vit.console import Meter
from vit.errors import UserError
from vit.hardware import available_memory, default_precision, hardware


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of one model."""

    machine: "Machine"
    inference: Times
    """Times of a batch."""
    training: Times
    kept: int
    """Bytes per image kept for the backward pass."""
    peak: int | None
    """Peak bytes of a training step; None if the device does not report it."""
    largest_batch: int | None
    """Determined by trial; None where only a prediction is safe."""

    def to_row(self, work: Work) -> dict[str, Any]:
        """Plain JSON types."""
        inference, training = (
            times.per_second(self.machine.batch_size) for times in (self.inference, self.training)
        )
        speed = work.training_flops * training["median"]
        row: dict[str, Any] = {
            "measured_on": self.machine.name,
            "precision": self.machine.precision,
            "batch_size": self.machine.batch_size,
            "inference_images_per_second": inference,
            "training_images_per_second": training,
            "flops_per_second": speed,
            "measured_activation_bytes": self.kept,
        }
        if self.machine.known is not None:
            row["utilisation"] = self.machine.utilisation(speed)
        if self.peak is not None:
            row["measured_peak_bytes"] = self.peak
        if self.largest_batch is not None:
            row["largest_batch_found"] = self.largest_batch
        return row


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The first CUDA device, otherwise the CPU."""

    type: str
    """torch's device type: cuda or cpu."""
    name: str
    memory: int
    """Free bytes."""
    limit: int | None
    """Bytes that the user allows, if given."""
    precision: str
    """fp32 or bf16."""
    batch_size: int
    repetitions: int
    known: Device | None
    """Its entry in DEVICES, if any."""

    @classmethod
    def here(
        cls,
        precision: str | None,
        batch_size: int | None,
        repetitions: int | None,
        gib: float | None,
    ) -> "Machine":
        """The machine with the user's options for measuring, or its defaults."""
        import torch

        cuda = torch.cuda.is_available()
        kind = "cuda" if cuda else "cpu"
        memory = available_memory(torch.device(kind))
        facts = hardware()
        name = torch.cuda.get_device_name() if cuda else f"{facts['cores']} cores {facts['cpu']}"
        return cls(
            type=kind,
            name=name,
            memory=memory,
            limit=None if gib is None else int(gib * GIB),
            precision=precision_name(precision or default_precision(kind)[0]),
            batch_size=batch_size or (64 if cuda else 8),
            repetitions=repetitions or ROUNDS,
            known=recognise_device(name) if cuda else None,
        )

    @property
    def rule(self) -> str:
        """The entry of the precision in units.py."""
        return "bf16-cpu" if (self.type, self.precision) == ("cpu", "bf16") else self.precision

    @property
    def tries(self) -> bool:
        """Whether the largest batch can be tried; a CPU out of memory kills processes."""
        return self.type == "cuda"

    def utilisation(self, flops_per_second: float) -> float:
        """Fraction of its peak, which must be known."""
        assert self.known is not None
        return flops_per_second / (self.known.tflops * 1e12)

    def check_known(self) -> None:
        """Raises UserError if the peak is unknown."""
        if self.known is None:
            raise UserError(
                f"--device with --measure needs the peak of this machine, and that of {self.name} "
                "is not known: leave out --device for days here, or --measure and give "
                "--utilisation"
            )

    def measure(
        self, models: Sequence[Candidate], memories: Sequence[TrainingMemory | None]
    ) -> list[Measured]:
        """Measures all models alternately. UserError if they do not fit, predicted or actual."""
        import torch

        self._check_memory(models, memories)
        device, total = torch.device(self.type), num_turns(2 * len(models), self.repetitions)
        with (
            Meter("building models", total, "turns") as meter,
            out_of_memory(self.name, self.batch_size),
        ):
            return self._measure(models, memories, device, meter)

    def _measure(
        self,
        models: Sequence[Candidate],
        memories: Sequence[TrainingMemory | None],
        device: Any,
        meter: Meter,
    ) -> list[Measured]:
        batches: list[int | None] = [None] * len(models)
        if self.tries:
            pairs = zip(models, memories, strict=True)
            batches = [self._largest(model, memory, device, meter) for model, memory in pairs]
        bench, calls, memory = Workbench(device), {}, {}
        for place, model in enumerate(models):
            meter.show(f"building {model.name}")
            infer, train = self._ways(model, place)
            network = bench.network(train)
            kept = measured_activations(network, bench.images(train), self.precision)
            memory[place] = kept, measured_peak(bench.call(train), network, device)
            calls |= {way: bench.call(way) for way in (infer, train)}
        times = measure(calls, device, rounds=self.repetitions, meter=meter)
        return [
            Measured(
                machine=self,
                inference=times[self._ways(model, place)[0]],
                training=times[self._ways(model, place)[1]],
                kept=memory[place][0],
                peak=memory[place][1],
                largest_batch=batches[place],
            )
            for place, model in enumerate(models)
        ]

    def _ways(self, model: Candidate, place: int) -> tuple[Way, Way]:
        """Inference and training of one model."""
        options: dict[str, Any] = {"batch_size": self.batch_size, "precision": self.precision}
        options |= {"model": model, "place": place, "in_training": True}
        return Way(what="inference", **options), Way(what="training", **options)

    def _check_memory(
        self, models: Sequence[Candidate], memories: Sequence[TrainingMemory | None]
    ) -> None:
        """Raises UserError unless all weights and one model's activations fit."""
        fitted = [(c, m) for c, m in zip(models, memories, strict=True) if m is not None]
        for model, memory in fitted:
            need = memory.total(self.batch_size)
            if need > self.memory:
                raise UserError(
                    f"{model.name} at {_size(model)} pixels and --batch-size {self.batch_size} "
                    f"needs about {need / GIB:.1f} GiB to train, {self.memory / GIB:.1f} GiB are "
                    f"free on {self.name}: choose a smaller batch or model"
                )
        fixed = sum(memory.fixed for _, memory in fitted)
        need = fixed + max(m.total(self.batch_size) - m.fixed for _, m in fitted)
        if need > self.memory:
            raise UserError(
                f"the {len(fitted)} models together need about {need / GIB:.1f} GiB, "
                f"{self.memory / GIB:.1f} GiB are free on {self.name}: measure fewer at a time"
            )

    def _largest(
        self, model: Candidate, memory: TrainingMemory | None, device: Any, meter: Meter
    ) -> int:
        import torch

        meter.show(f"largest batch of {model.name}")
        total = torch.cuda.get_device_properties(device).total_memory
        allowed = self.memory if self.limit is None else min(self.memory, self.limit)
        torch.cuda.set_per_process_memory_fraction(allowed / total, device)
        predicted = 1 if memory is None else memory.largest_batch(allowed)
        try:
            return largest(trainable(model, device, self.precision), predicted)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)

    def notes(self) -> list[str]:
        """How the figures were measured."""
        return [
            f"Measured on {self.name}, {self.precision}, batch {self.batch_size}: median of "
            f"{self.repetitions} repetitions, models in turns, ± half the distance of slowest and "
            "fastest. Training is a whole step with fused AdamW, without reading images.",
        ]


def _size(model: Candidate) -> str:
    return "x".join(map(str, model.image_size))
