"""`vit export --at`: the precision and image size that keep to a latency, and what they lose."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vit.console import note
from vit.data.sources import ImageSet
from vit.errors import UserError
from vit.extensions.compute.tables import export_table
from vit.extensions.serving.choice import Candidate, export_within, put_aside
from vit.extensions.serving.cli_weights import splits_of, weights_of
from vit.extensions.serving.engines import computes_bfloat16
from vit.extensions.serving.quantize import (
    FEWEST,
    MAX_DROP,
    among,
    calibration_pictures,
    check_accuracy,
    labelled_pictures,
)
from vit.extensions.serving.source import described, files
from vit.hardware import available_cores, cpu_name
from vit.runs.lineage import known_by
from vit.runs.records import is_run


def choose(options: Namespace, show: Callable[..., None]) -> None:
    """Measures all candidates, shows them, and writes the file of one. UserError if none fits."""
    images, calibration = _pictures(options)
    limit, most = options.at, MAX_DROP if options.max_drop is None else options.max_drop
    result = export_within(
        weights_of(options.model),
        options.dst,
        images,
        calibration,
        limit=limit,
        max_drop=most,
        sizes=options.sizes or (),
        overwrite=options.overwrite,
    )
    rows = [_row(each, each.verdict(limit, most)) for each in result.candidates]
    place = None if result.chosen is None else result.candidates.index(result.chosen)
    about: dict[str, Any] = {"limit_ms": 1e3 * limit, "max_drop": most, "images": len(images)}
    about |= {"calibration": len(calibration), "candidates": rows, "chosen": place}
    about["proof"] = result.proof and result.proof.to_dict()
    if place is not None:
        rows[place]["verdict"] = "chosen"
    lines = [
        export_table(rows),
        f"accuracy on {len(images):,} images; {cpu_name()}, {available_cores()} cores",
    ]
    show(result, options.json, about, *lines, *([result.proof.line()] if result.proof else []))
    if place is None:
        raise UserError(_remedy(result.candidates, limit, most, len(images)))


def _pictures(options: Namespace) -> tuple[ImageSet, ImageSet]:
    """Labelled images that the model did not learn, and others to calibrate on.

    UserError if there are none.
    """
    _, about = described(weights_of(options.model))
    check_accuracy(about)
    others, where = None, options.data or options.model
    run = Path(options.model).expanduser()
    if options.data is not None:
        images = labelled_pictures(options.data, about)
    elif not is_run(run) or (splits := splits_of(run)) is None or not splits.val:
        raise UserError(f"{options.model} has no images to measure on: --data FOLDER of classes")
    else:
        images, others = splits.val, splits.train
    known = known_by(options.model)
    images = _without(
        images, known and known.mask(images), f"were in the training of {options.model}"
    )
    if options.int8 is not None:
        paths = calibration_pictures(options.int8, about)
        images = _without(images, among(images, paths), f"are in {options.int8}")
        others = files(paths)
    elif others is None:
        images, others = put_aside(images)
    if not len(images):
        raise UserError(f"no image of {where} is left to measure on; give others: --data FOLDER")
    if len(others) < FEWEST:
        text = f"{len(others)} pictures to calibrate on are fewer than {FEWEST}"
        note(f"int8 is not tried: {text}; --int8 FOLDER names more")
    if not computes_bfloat16():
        note("bfloat16 is not tried: the CPU has no units for it")
    return images, others


def _without(images: ImageSet, mask: np.ndarray | None, reason: str) -> ImageSet:
    """The images that the mask `n` does not name, with a note on the others."""
    if mask is None or not mask.any():
        return images
    note(f"{mask.sum():,} of {len(images):,} images {reason}; the drop is measured on the others")
    return images.select(np.flatnonzero(~mask))


def _row(candidate: Candidate, verdict: str) -> dict[str, Any]:
    """A candidate in JSON types."""
    pair, calls = candidate.accuracy, [1e3 * value for value in candidate.seconds.values]
    return {
        "precision": candidate.precision,
        "image_size": list(candidate.size),
        "median_ms": 1e3 * candidate.seconds.median,
        "range_ms": [min(calls), max(calls)],
        "accuracy": pair.after / pair.count,
        "drop": pair.drop,
        "interval": [0.0, 0.0] if candidate.is_model else list(pair.interval),
        "verdict": verdict,
    }


def _remedy(candidates: list[Candidate], limit: float, max_drop: float, count: int) -> str:
    """Remedy where no candidate fits."""
    quick = [each for each in candidates if each.seconds.median <= limit]
    if not quick:
        nearest = min(candidates, key=lambda each: each.seconds.median)
        return (
            f"nothing answers in {1e3 * limit:g} ms; the nearest is {nearest.precision} at "
            f"{nearest.size[0]}x{nearest.size[1]} with {1e3 * nearest.seconds.median:.1f} ms: "
            "allow more (--at), or try smaller images (--sizes)"
        )
    if needed := [number for each in quick if (number := each.needs(max_drop))]:
        return (
            f"{count:,} images are too few to say that less than {max_drop:g} points are lost; "
            f"{min(needed):,} are enough if the shares stay (--data), or allow more (--max-drop)"
        )
    return (
        f"what answers in {1e3 * limit:g} ms loses {max_drop:g} points or more; allow more time "
        "(--at) or a larger loss (--max-drop), or fit a smaller model"
    )
