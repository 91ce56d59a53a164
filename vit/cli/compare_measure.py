"""The machine that `vit compare --measure` runs on: its memory, its speed, what fits."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vit.compute.candidate import Candidate
from vit.compute.cost import Device, recognise_device
from vit.compute.flops import Work
from vit.compute.memory import GIB, TrainingMemory, available_memory
from vit.compute.throughput import REPETITIONS, Rate, Subject, largest, measure, trainable
from vit.compute.units import precision_name
from vit.errors import UserError
from vit.hardware import default_precision, hardware


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of one model."""

    machine: "Machine"
    inference: Rate
    training: Rate
    kept: int
    """Bytes per image kept for the backward pass."""
    peak: int
    """Bytes of a training step; 0 where the device does not tell."""
    largest_batch: int | None
    """Found by trying; None where only a prediction is safe."""

    def to_row(self, work: Work) -> dict[str, Any]:
        """Plain JSON types."""
        speed = work.training_flops * self.training.median
        row: dict[str, Any] = {
            "measured_on": self.machine.name,
            "precision": self.machine.precision,
            "batch_size": self.machine.batch_size,
            "inference_images_per_second": self.inference.to_dict(),
            "training_images_per_second": self.training.to_dict(),
            "flops_per_second": speed,
            "measured_activation_bytes": self.kept,
        }
        if self.machine.known is not None:
            row["utilisation"] = self.machine.utilisation(speed)
        if self.peak:
            row["measured_peak_bytes"] = self.peak
        if self.largest_batch is not None:
            row["largest_batch_found"] = self.largest_batch
        return row


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The first CUDA device, or else the CPU."""

    type: str
    """torch's name of the kind: cuda or cpu."""
    name: str
    memory: int
    """Bytes that are free."""
    limit: int | None
    """Bytes that the user allows, where they said so."""
    precision: str
    """fp32 or bf16."""
    batch_size: int
    repetitions: int
    known: Device | None
    """Its entry in our table, where it has one."""

    @classmethod
    def here(
        cls,
        precision: str | None,
        batch_size: int | None,
        repetitions: int | None,
        gib: float | None,
    ) -> "Machine":
        """The machine, and how to measure on it: the user's choices, else what suits it."""
        import torch

        cuda = torch.cuda.is_available()
        kind = "cuda" if cuda else "cpu"
        memory = torch.cuda.mem_get_info()[0] if cuda else available_memory()
        facts = hardware()
        name = torch.cuda.get_device_name() if cuda else f"{facts['cores']} cores {facts['cpu']}"
        return cls(
            type=kind,
            name=name,
            memory=memory,
            limit=None if gib is None else int(gib * GIB),
            precision=precision_name(precision or default_precision(kind)[0]),
            batch_size=batch_size or (64 if cuda else 8),
            repetitions=repetitions or REPETITIONS,
            known=recognise_device(name) if cuda else None,
        )

    @property
    def rule(self) -> str:
        """The precision's entry in the table of units.py."""
        return "bf16-cpu" if (self.type, self.precision) == ("cpu", "bf16") else self.precision

    @property
    def tries(self) -> bool:
        """Whether the largest batch can be found by trying; a CPU that runs out kills processes."""
        return self.type == "cuda"

    def utilisation(self, flops_per_second: float) -> float:
        """Share of its peak, which must be known."""
        assert self.known is not None
        return flops_per_second / (self.known.tflops * 1e12)

    def check_known(self) -> None:
        """UserError where the peak is not known."""
        if self.known is None:
            raise UserError(
                f"--device with --measure needs the peak of this machine, and that of {self.name} "
                "is not known: leave out --device for days here, or --measure and give "
                "--utilisation"
            )

    def measure(
        self, models: Sequence[Candidate], memories: Sequence[TrainingMemory | None]
    ) -> list[Measured]:
        """All models in turns. UserError, before or after the fact, where they do not fit."""
        import torch

        self._check_memory(models, memories)
        device = torch.device(self.type)
        subjects = [Subject(model=model, batch_size=self.batch_size) for model in models]
        with Progress() as progress:
            batches: list[int | None] = [None] * len(models)
            if self.tries:
                batches = [
                    self._largest(s, m, device, progress)
                    for s, m in zip(subjects, memories, strict=True)
                ]
            try:
                measure(
                    subjects,
                    device,
                    self.precision,
                    repetitions=self.repetitions,
                    report=progress.show,
                )
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if "memory" not in str(error):
                    raise
                raise UserError(
                    f"{self.name} ran out of memory with --batch-size {self.batch_size}: choose a "
                    "smaller one, or measure fewer models at a time"
                ) from error
        return [
            Measured(
                machine=self,
                inference=subject.inference,
                training=subject.training,
                kept=subject.kept,
                peak=subject.peak,
                largest_batch=batch,
            )
            for subject, batch in zip(subjects, batches, strict=True)
        ]

    def _check_memory(
        self, models: Sequence[Candidate], memories: Sequence[TrainingMemory | None]
    ) -> None:
        """All weights stay, one model at a time has activations."""
        known = [(c, m) for c, m in zip(models, memories, strict=True) if m is not None]
        for model, memory in known:
            need = memory.total(self.batch_size)
            if need > self.memory:
                raise UserError(
                    f"{model.name} at {_size(model)} pixels and --batch-size {self.batch_size} "
                    f"needs about {need / GIB:.1f} GiB to train, {self.memory / GIB:.1f} GiB are "
                    f"free on {self.name}: choose a smaller batch or model"
                )
        fixed = sum(memory.fixed for _, memory in known)
        need = fixed + max(m.total(self.batch_size) - m.fixed for _, m in known)
        if need > self.memory:
            raise UserError(
                f"the {len(known)} models together need about {need / GIB:.1f} GiB, "
                f"{self.memory / GIB:.1f} GiB are free on {self.name}: measure fewer at a time"
            )

    def _largest(
        self, subject: Subject, memory: TrainingMemory | None, device: Any, progress: "Progress"
    ) -> int:
        import torch

        progress.show(f"largest batch of {subject.model.name}")
        total = torch.cuda.get_device_properties(device).total_memory
        allowed = self.memory if self.limit is None else min(self.memory, self.limit)
        torch.cuda.set_per_process_memory_fraction(allowed / total, device)
        predicted = 1 if memory is None else memory.largest_batch(allowed)
        try:
            return largest(trainable(subject, device, self.precision), predicted)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)

    def notes(self) -> list[str]:
        """How the figures came about."""
        return [
            f"Measured on {self.name}, {self.precision}, batch {self.batch_size}: median of "
            f"{self.repetitions} repetitions, models in turns, ± half the distance of slowest and "
            "fastest. Training is a whole step with fused AdamW, without reading images.",
        ]


def _size(model: Candidate) -> str:
    return "x".join(map(str, model.image_size))


class Progress:
    """One line on standard error that is rewritten; in a file or pipe, nothing."""

    def __enter__(self) -> "Progress":
        self._terminal = sys.stderr.isatty()
        return self

    def show(self, line: str) -> None:
        """Replaces the line."""
        if self._terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *exception: object) -> None:
        self.show("")
