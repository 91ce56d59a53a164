"""The precision and image size of an exported file, chosen by latency here and accuracy lost.

Shapes: n images, h w pixels.
"""

import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from vit.data.sampler import evaluated
from vit.data.sources import ImageSet
from vit.extensions.compute.timing import Times, in_turns
from vit.extensions.reports.intervals import Paired
from vit.extensions.serving.engines import (
    Description,
    Engine,
    computes_bfloat16,
    open_engine,
    openvino_core,
)
from vit.extensions.serving.graph import Graph
from vit.extensions.serving.page import write_page
from vit.extensions.serving.proof import PROOF_IMAGES, Proof, compare, cut, hits, paired, prove
from vit.extensions.serving.quantize import FEWEST, MAX_DROP, MOST, QUANTIZERS
from vit.extensions.serving.source import described
from vit.extensions.serving.write import (
    Differs,
    beside,
    destination,
    moved,
    quiet,
    save_openvino,
    written,
)
from vit.inference.classifier import Classifier
from vit.preprocessing import Size

CALLS = 50
"""Of which the latency is the median."""
SHARE = 5
"""One of so many labelled images is put aside for the calibration."""


@dataclass(frozen=True)
class Candidate:
    """A precision at an image size."""

    file: Path
    """Where it was while it was measured."""
    precision: str
    size: Size
    seconds: Times
    """Of calls with one image."""
    accuracy: Paired
    """Of the model in float32 at its own size, and of this candidate."""
    is_model: bool
    """True for float32 at the model's own size."""

    @property
    def bound(self) -> float:
        """Upper end of the 95 % interval of the points lost; the model itself loses none."""
        return 0.0 if self.is_model else self.accuracy.interval[1]

    def needs(self, max_drop: float) -> int | None:
        """Images for a bound below `max_drop`, if the shares of images that are lost and gained
        stay; None if more points than that are lost already."""
        pair = self.accuracy
        if pair.drop >= max_drop:
            return None

        def bound(count: int) -> float:
            changed = {name: vars(pair)[name] * count / pair.count for name in ("lost", "gained")}
            return replace(pair, **{"count": count, **changed}).interval[1]

        most = pair.count
        while bound(most) >= max_drop:
            most *= 2
        return 1 + bisect_left(range(1, most), True, key=lambda count: bound(count) < max_drop)

    def verdict(self, limit: float, max_drop: float) -> str:
        """Words for people: too slow, loses too much, needs 1,234 photos, or fits."""
        if self.seconds.median > limit:
            return "too slow"
        if self.bound < max_drop:
            return "fits"
        needed = self.needs(max_drop)
        return "loses too much" if needed is None else f"needs {needed:,} photos"


def choose(candidates: Sequence[Candidate], limit: float, max_drop: float) -> Candidate | None:
    """The candidate of at most `limit` seconds, and a bound below `max_drop`, whose bound is the
    lowest; the faster one of two. None if none fits."""
    fitting = [each for each in candidates if each.verdict(limit, max_drop) == "fits"]
    return min(fitting, key=lambda each: (each.bound, each.seconds.median), default=None)


@dataclass(frozen=True)
class Choice:
    """Result of `export_within`; without files if no candidate fits."""

    files: list[Path]
    detail: str
    """The runtime, and the precision."""
    proof: Proof | None
    """Of the file, against PyTorch in float32 at its size."""
    candidates: list[Candidate]
    chosen: Candidate | None


def put_aside(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Labelled images without a fifth of them, and those; drawn by a seed."""
    aside = [*evaluated(len(images), min(MOST, len(images) // SHARE), 0)]
    rest = np.setdiff1d(np.arange(len(images)), aside)
    return images.select(rest), images.select(np.array(aside))


def export_within(
    model: str | Path | Classifier,
    dst: str | Path,
    images: ImageSet,
    calibration: ImageSet,
    *,
    limit: float,
    max_drop: float = MAX_DROP,
    sizes: Sequence[Size] = (),
    overwrite: bool = False,
) -> Choice:
    """Writes a classifier for OpenVINO in the precision and image size that `choose` chooses.

    Args:
        model: As for `export`, with classes and one label per image.
        dst: The file, .xml.
        images: Labelled images on which the drop is measured.
        calibration: Other images, for int8, which is left out if they are fewer than 32.
        limit: Seconds for one image on this machine.
        max_drop: Points of accuracy on `images`, above the bound.
        sizes: Heights and widths to try, beside the model's own.
        overwrite: Replaces files that are there.

    Raises UserError and Differs as `export` does.
    """
    path, kind = destination(Path(dst).expanduser(), "openvino", overwrite)
    usual = described(model)[1].preprocess.image_size
    pictures = [images.items[i] for i in evaluated(len(images), PROOF_IMAGES, 0)]
    origin = f"{len(pictures)} labelled images"
    candidates: list[Candidate] = []
    right: np.ndarray | None = None
    with beside(path) as folder, tempfile.TemporaryDirectory() as elsewhere:
        place = Path(elsewhere)
        for size in dict.fromkeys([usual, *sizes]):
            graph, about = described(model, size)
            shown = cut(pictures, about.preprocess)
            files = _written(graph, about, shown, calibration, place / str(size) / path.name)
            engines = [open_engine(file) for file in files]
            named = hits([engine.run for engine in engines], images, about.preprocess)
            right = named[0] if right is None else right
            for file, engine, those in zip(files, engines, named, strict=True):
                pair, is_model = paired(right, those), not candidates
                candidates.append(_timed(engine, file, shown[:1], pair, is_model=is_model))
        chosen = choose(candidates, limit, max_drop)
        if chosen is None:
            return Choice([], "", None, candidates, None)
        graph, about = described(model, chosen.size)
        engine = open_engine(chosen.file)
        proof = compare(graph, engine.run, cut(pictures, about.preprocess), origin)
        for file in chosen.file.parent.iterdir():
            shutil.move(file, folder)
        write_page(folder / path.name, kind, engine.description)
        return Choice(moved(folder, path), engine.name, proof, candidates, chosen)


def _timed(
    engine: Engine, file: Path, image: np.ndarray, accuracy: Paired, *, is_model: bool
) -> Candidate:
    """The candidate in a file, after its calls with an image `1 h w c`."""
    seconds = in_turns({0: partial(engine.run, image)}, rounds=CALLS, shortest=0)[0]
    about = engine.description
    size = about.preprocess.image_size
    return Candidate(file, about.precision, size, seconds, accuracy, is_model)


def _written(
    graph: Graph, about: Description, shown: np.ndarray, calibration: ImageSet, file: Path
) -> list[Path]:
    """Files of a model, each in a folder named after its precision: float32 first, bfloat16 where
    the CPU has units for it, and int8. Differs if float32 answers differently from PyTorch."""
    precisions = ["float32", *(["bfloat16"] if computes_bfloat16() else [])]
    precisions += ["int8"] if len(calibration) >= FEWEST else []
    files = {name: file.parent / name / file.name for name in precisions}
    for each in files.values():
        each.parent.mkdir(parents=True)
    plain = files["float32"]
    run, _ = written("openvino", graph, about, plain, None)
    proof = prove(graph, run, shown, "labelled images")
    if not proof.passed:
        raise Differs(f"nothing was kept, as float32 answers differently: {proof.line()}")
    if "bfloat16" in files:
        copy = openvino_core().read_model(plain)
        save_openvino(copy, replace(about, precision="bfloat16"), files["bfloat16"])
    if "int8" in files:
        items = (calibration.items[i] for i in evaluated(len(calibration), MOST, 0))
        pixels = cut(items, about.preprocess)
        with quiet():
            QUANTIZERS["openvino"](plain, files["int8"], pixels, replace(about, precision="int8"))
    return [*files.values()]
