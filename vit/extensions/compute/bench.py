"""Images per second of models on this machine, and the share of its peak.

All models, precisions and batches take turns in every round. A training step is forward pass, loss,
backward pass and fused AdamW on random images on the device, without loading and augmentation.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from vit.errors import UserError
from vit.extensions.compute import timing
from vit.extensions.compute.candidate import Candidate, find_model
from vit.extensions.compute.timing import Call, Times
from vit.hardware import default_precision, hardware, versions
from vit.models.config import ViTConfig
from vit.models.zoo import ModelConfig

BATCHES = {"cpu": (1, 8), "cuda": (1, 32, 128)}
GPU_SHORTEST = 0.2
"""Minimum seconds per turn on a GPU, where steps are queued faster than they run."""
NEARLY = 0.95
"""A smaller batch is suggested if it reaches this share of the highest rate."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of a model's weights in inference; training in bf16 is mixed."""
SQUARE = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the reference product for models without dense layers."""


class Limit(NamedTuple):
    """Plain matrix products, and their operations."""

    call: Call
    flops: int


class Way(NamedTuple):
    """A way of running a model, or the plain products that take turns with it."""

    place: int
    """Index of the model, which may be named twice."""
    label: str
    precision: str
    compile: str | None = None
    """Mode of torch.compile."""
    batch_size: int = 0
    """0: the plain products."""

    def __str__(self) -> str:
        compiled = f", compiled ({self.compile})" if self.compile else ""
        batch = f", batch {self.batch_size}" if self.batch_size else ""
        return f"{self.label}, {self.precision}{compiled}{batch}"


def bench(
    models: Sequence[str],
    *,
    image_size: tuple[int, int] | None = None,
    device: str | None = None,
    train: bool = False,
    batch_size: Sequence[int] = (),
    precision: Sequence[str] = (),
    compile: str | None = None,
    rounds: int = 5,
) -> list[dict[str, Any]]:
    """Reports, one per model, of plain JSON types. The arguments are the options of `vit bench`.

    UserError if there is no GPU or not enough memory.
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UserError("--device cuda: PyTorch finds no GPU here; leave it out to measure the CPU")
    where = torch.device(device or ("cuda" if has_gpu else "cpu"))
    if not precision:
        fast = default_precision(where.type)[0] == "bf16-mixed"
        precision = ("fp32", "bf16") if fast else ("fp32",)
    batches = sorted(set(batch_size or BATCHES[where.type]))
    candidates = [find_model(name, image_size) for name in models]
    try:
        limits, calls = _prepared(candidates, precision, compile, batches, where, train)
        shortest = GPU_SHORTEST if where.type == "cuda" else timing.SHORTEST
        wait, title = timing.finisher(where), "warming up"
        times = timing.in_turns(calls, rounds=rounds, shortest=shortest, finish=wait, title=title)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise UserError(
            f"{where.type} ran out of memory with --batch-size {batches[-1]}: choose a smaller "
            "one, or measure fewer models at a time"
        ) from error
    return [_report(i, model, where, train, limits, times) for i, model in enumerate(candidates)]


def limit(
    config: ModelConfig | None, batch_size: int, dtype: torch.dtype, device: torch.device
) -> Limit:
    """The peak: the dense products of an encoder layer; for a ResNet one large square product."""
    if isinstance(config, ViTConfig):
        m, d, hidden = batch_size * config.num_tokens, config.width, config.mlp_dim
        # (m, d, k) is `m d` times `d k`.
        shapes = [(m, d, 3 * d), (m, d, d), (m, d, config.mlp_hidden_width), (m, hidden, d)]
    else:
        shapes = [(SQUARE[device.type],) * 3]
    inputs = [torch.randn(m, d, device=device).to(dtype) for m, d, _ in shapes]
    weights = [torch.randn(k, d, device=device).to(dtype) for _, d, k in shapes]

    def call() -> object:
        with torch.inference_mode():
            return [torch.mm(x, weight.t()) for x, weight in zip(inputs, weights, strict=True)]

    return Limit(call, sum(2 * m * d * k for m, d, k in shapes))


def _prepared(
    candidates: Sequence[Candidate],
    precisions: Sequence[str],
    compile: str | None,
    batches: Sequence[int],
    device: torch.device,
    train: bool,
) -> tuple[dict[Way, Limit], dict[Way, Call]]:
    """The plain products of each model and precision; a call for each, and per batch of a model."""
    limits: dict[Way, Limit] = {}
    calls: dict[Way, Call] = {}
    for (place, model), name in product(enumerate(candidates), dict.fromkeys(precisions)):
        peak = Way(place, "matrix products", name)
        limits[peak] = limit(model.config, batches[-1], DTYPES[name], device)
        calls[peak] = limits[peak].call
        size = f"{'x'.join(map(str, model.image_size))} px"
        label = f"{model.name} at {size}, {'training' if train else 'inference'}"
        for mode in dict.fromkeys((None, compile)):
            network = model.build().to(device, torch.float32 if train else DTYPES[name])
            if mode is not None:
                network.compile(mode=mode, dynamic=False)
            step = timing.training(network, name) if train else None
            for batch in batches:
                images = torch.randn(batch, model.channels, *model.image_size, device=device)
                call = timing.inference(network, images) if step is None else partial(step, images)
                calls[Way(place, label, name, mode, batch)] = call
    return limits, calls


def _report(
    place: int,
    model: Candidate,
    device: torch.device,
    train: bool,
    limits: dict[Way, Limit],
    times: dict[Way, Times],
) -> dict[str, Any]:
    work = model.work.training_flops if train else model.work.flops
    peaks = {peak.precision: peak for peak in limits if peak.place == place}
    rows = []
    for way, each in times.items():
        if way.place != place or not way.batch_size:
            continue
        peak = peaks[way.precision]
        share = way.batch_size * work / limits[peak].flops
        rows.append(_row(way, each, share * each.faster_than(times[peak])))
    return {
        "model": model.name,
        "image_size": list(model.image_size),
        "params": model.work.params,
        "what": "training step" if train else "inference",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "limit_flops_per_second": {
            precision: limits[peak].flops / times[peak].median for precision, peak in peaks.items()
        },
        "rows": rows,
        "suggestion": suggestion(rows),
        "hardware": hardware(),
        "versions": versions(),
    }


def _row(way: Way, times: Times, utilisation: float) -> dict[str, Any]:
    return {
        "precision": way.precision,
        "compile": way.compile,
        "batch_size": way.batch_size,
        "images_per_second": way.batch_size / times.median,
        "milliseconds_per_batch": 1000 * times.median,
        "spread": times.spread,
        "rounds": len(times.values),
        "utilisation": utilisation,
    }


def suggestion(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of the smallest batch that is nearly as fast as the fastest, of its kind."""
    best = max(rows, key=lambda row: row["images_per_second"])
    rate, kind = NEARLY * best["images_per_second"], (best["precision"], best["compile"])
    of_kind = (row for row in rows if (row["precision"], row["compile"]) == kind)
    similar = (row for row in of_kind if row["images_per_second"] >= rate)
    return min(similar, key=lambda row: row["batch_size"])
