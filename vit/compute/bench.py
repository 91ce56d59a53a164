"""Images per second of models on this machine, and the share of its peak."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from vit.compute.candidate import Candidate, find_model
from vit.compute.limits import Limit, limit, products
from vit.compute.throughput import ROUNDS, Way, What, Workbench, measure, out_of_memory
from vit.compute.timing import Times, num_turns
from vit.console import Meter
from vit.errors import UserError
from vit.hardware import default_precision, hardware, versions

if TYPE_CHECKING:
    import torch

BATCHES = {"cpu": (1, 8), "cuda": (1, 32, 128)}
NEARLY = 0.95
"""A smaller batch is suggested if it reaches this share of the highest rate."""


class Products(NamedTuple):
    """The peak for one model in one precision, measured alternately with the ways of running it."""

    place: int
    """Index of the model."""
    precision: str

    def __str__(self) -> str:
        return f"matrix products in {self.precision}"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What `vit bench` measures of each model."""

    models: Sequence[str]
    """Names, torchvision/NAME, runs, or files of weights."""
    image_size: tuple[int, int] | None = None
    """(height, width) in pixels; None is each model's default."""
    device: str | None = None
    """cpu or cuda; None is the GPU if there is one."""
    what: What = "inference"
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; empty for the device's defaults."""
    precisions: tuple[str, ...] = ()
    """fp32, bf16; empty for those that are fast on the device."""
    compile: str | None = None
    """Mode of torch.compile for a second measurement of each way."""
    rounds: int = ROUNDS

    def run(self) -> list[dict[str, Any]]:
        """One report per model, of plain JSON types. All ways of all models alternate.

        UserError if there is no GPU or not enough memory.
        """
        import torch

        has_gpu = torch.cuda.is_available()
        if self.device == "cuda" and not has_gpu:
            raise UserError(
                "--device cuda: PyTorch finds no GPU here; leave it out to measure the CPU"
            )
        device = torch.device(self.device or ("cuda" if has_gpu else "cpu"))
        models = [find_model(name, self.image_size) for name in self.models]
        batches = sorted(set(self.batch_sizes or BATCHES[device.type]))
        precisions = list(dict.fromkeys(self.precisions))
        if not precisions:
            fast = default_precision(device.type)[0] == "bf16-mixed"
            precisions = ["fp32", "bf16"] if fast else ["fp32"]
        modes = (None,) if self.compile is None else (None, self.compile)
        ways = [
            Way(
                model=model, what=self.what, batch_size=batch, precision=precision, compile=mode,
                place=place,
            )
            for place, model in enumerate(models)
            for precision in precisions
            for mode in modes
            for batch in batches
        ]  # fmt: skip
        with out_of_memory(device.type, batches[-1]):
            times, limits = self._measure(ways, device, batches[-1])
        return [
            self._report(model, place, device, times, limits) for place, model in enumerate(models)
        ]

    def _measure(
        self, ways: Sequence[Way], device: "torch.device", largest: int
    ) -> tuple[dict[Any, Times], dict[Products, Limit]]:
        """Times of each way and of each limit, by place and precision; and the limits."""
        import torch

        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
        bench, limits, calls = Workbench(device), {}, {}
        models = {Products(way.place, way.precision): way.model for way in ways}
        total = num_turns(len(ways) + len(models), self.rounds)
        with Meter("building models", total, "turns") as meter:
            for key, model in models.items():
                shapes = products(model.config, largest, device)
                limits[key] = limit(shapes, dtypes[key.precision], device)
                calls[key] = limits[key].call
            for way in ways:
                meter.show(f"building {way}")
                calls[way] = bench.call(way)
            return measure(calls, device, rounds=self.rounds, meter=meter), limits

    def _report(
        self,
        model: Candidate,
        place: int,
        device: "torch.device",
        times: Mapping[Any, Times],
        limits: Mapping[Products, Limit],
    ) -> dict[str, Any]:
        import torch

        work = model.work.training_flops if self.what == "training" else model.work.flops
        rows = []
        for way in (key for key in times if isinstance(key, Way) and key.place == place):
            key, each = Products(place, way.precision), times[way]
            rows.append(
                {
                    "precision": way.precision,
                    "compile": way.compile,
                    "batch_size": way.batch_size,
                    "images_per_second": way.batch_size / each.median,
                    "milliseconds_per_batch": 1000 * each.median,
                    "spread": each.spread,
                    "rounds": self.rounds,
                    "utilisation": limits[key].share(way.batch_size * work, each, times[key]),
                }
            )
        return {
            "model": model.name,
            "image_size": list(model.image_size),
            "params": model.work.params,
            "what": "training step" if self.what == "training" else "inference",
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "limit_flops_per_second": {
                key.precision: product.flops / times[key].median
                for key, product in limits.items()
                if key.place == place
            },
            "rows": rows,
            "suggestion": suggestion(rows),
            "hardware": hardware(),
            "versions": versions(),
        }


def suggestion(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fastest way, with the smallest batch that is nearly as fast."""
    best = max(rows, key=lambda row: row["images_per_second"])
    enough = NEARLY * best["images_per_second"]
    same = [row for row in rows if (row["precision"], row["compile"]) ==
            (best["precision"], best["compile"])]  # fmt: skip
    return min(
        (row for row in same if row["images_per_second"] >= enough),
        key=lambda row: row["batch_size"],
    )
