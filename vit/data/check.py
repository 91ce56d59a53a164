"""What is wrong with the pictures of a folder or manifest; nothing is moved or deleted.

Shapes: n images of all splits, in the order train, val, test; m of them; s pixels of a side.
"""

import csv
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.ExifTags import Base
from torch.utils.data import DataLoader, Dataset

from vit.console import Meter
from vit.data.decode import ImageError, printable_path
from vit.data.find import check_source, find_splits
from vit.data.hashes import SIDE
from vit.data.loaders import MAX_WORKERS, start_worker
from vit.data.manifest import SEPARATOR
from vit.data.options import Columns, Splitting
from vit.data.photo import Photo
from vit.data.scan import entries
from vit.data.sources import PathList, SplitName, same_spelling
from vit.hardware import available_cores
from vit.writing import atomic

KINDS = {
    "unreadable": ("cannot be opened", "replace; --fix leaves them out"),
    "truncated": ("cut short", "copy again; --fix leaves them out"),
    "leak": ("the same picture in two splits", "--fix keeps that of test, or of val"),
    "conflict": ("copies with different labels", "look which label is right"),
    "doubt": ("label in doubt", "look; --relabel P changes the surest"),
    "identical": ("the same file twice", "--fix keeps one"),
    "copy": ("the same picture twice", "--fix keeps the larger one"),
    "blank": ("nearly black, or of one colour", "look, and delete"),
    "blurred": ("blurred", "look, and delete"),
    "tiny": (f"a side below {SIDE} pixels", "replace by a larger one"),
    "huge": ("more than 50 megapixels", "make it smaller: it takes seconds to read"),
    "extension": ("another format than its name says", "fine here; other programs may fail"),
    "rotated": ("turned by its EXIF tag", "fine here; other programs may not turn it"),
    "few": ("class with few training images", "add images, or join classes"),
    "names": ("class names of one spelling", "rename, if they are one class"),
}
"""Kind of finding -> what it is, and what to do; the worst first."""
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
SHORT_SIDE = 256
"""Pixels of the shorter side at which blur is measured; fewer in a smaller picture."""
SHARP = 30.0
"""Variance of the Laplacian of a sharp picture: that of all of 250 photos, and of 6 % of them after
a Gaussian blur of two pixels."""
BRIGHT, PLAIN = 40, 3.0
"""Lightest pixel of a small picture that is nearly black; deviation in one of one colour."""
HUGE = 50_000_000
FEW = 20
"""Training images of a class, fewer of which are a finding."""
FACTS = np.dtype(
    [
        *(("problem", object), ("digest", "S16"), ("height", "i4"), ("width", "i4")),
        *(("format", "U16"), ("rotated", "?"), ("blank", "?"), ("sharpness", "f4")),
        ("small", "u1", (SIDE, SIDE)),
    ]
)
"""What is known of a file: what is wrong with it (None: it can be opened), a digest of its bytes,
and the rest of one that can be opened: Pillow's name of its format, whether its EXIF tag turns it,
the variance of its Laplacian, and the picture in gray, squashed to `s s`."""
_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a person should look at."""

    kind: str
    """A key of KINDS."""
    subject: str
    """Name of the image, or of the class."""
    detail: str = ""
    image: int | None = None
    other: int | None = None
    """The copy that is kept."""
    suggested: str = ""
    """The label that it probably has."""
    certainty: float | None = None
    """Probability of that label."""


class Pictures:
    """All images of a source, of which `read` opens every one.

    Attributes: `classes`; `paths`, `names`, `labels`, `split` (index into SPLITS) and `facts`
    (FACTS) of the n images.
    """

    def __init__(self, root: str) -> None:
        """Raises UserError where `vit fit` would; but pictures beside each other need no class."""
        check_source(None, root)
        place, whole = Path(root).expanduser(), Splitting(val_fraction=0.0, test_fraction=0.0)
        labelled = place.is_file() or any(entry.is_dir() for entry in entries(str(place)))
        self.splits = find_splits(
            None, root, data_dir=None, cut=whole, labelled=labelled, columns=Columns()
        )
        self.classes, self.multilabel = self.splits.classes, self.splits.multilabel
        given = [self.splits.get(name) for name in SPLITS]
        sets = [images for images in given if images is not None]
        files = [images.items for images in sets if isinstance(images.items, PathList)]
        self.paths = PathList(chain.from_iterable(f.encoded() for f in files), files[0].root)
        self.names = PathList(chain.from_iterable(images.names.encoded() for images in sets))
        self.labels = np.concatenate([images.labels for images in sets])
        self.split = np.repeat(np.arange(len(SPLITS)), [len(images or ()) for images in given])
        self.facts = np.zeros(len(self.paths), FACTS)

    def label(self, image: int) -> str:
        """Its class, or its classes as in a manifest."""
        if not self.classes:
            return ""
        labels = self.labels[image]
        places = np.flatnonzero(labels) if self.multilabel else [labels]
        return SEPARATOR.join(self.classes[place] for place in places)

    def read(self, num_workers: int | None = None) -> None:
        """Fills in `facts`, in worker processes, by default one per core."""
        total, done = len(self.facts), 0
        if num_workers is None:
            num_workers = min(available_cores(), MAX_WORKERS, -(-total // _BATCH))
        loader = DataLoader(
            _Files(self.paths),
            batch_size=None,
            sampler=(range(i, min(i + _BATCH, total)) for i in range(0, total, _BATCH)),
            num_workers=num_workers,
            collate_fn=np.asarray,
            worker_init_fn=start_worker,
        )
        with Meter("checking", total, "img") as meter:
            for facts in loader:
                self.facts[done : done + len(facts)] = facts
                done += len(facts)
                meter.advance(len(facts))

    @property
    def opened(self) -> np.ndarray:
        """bool `n`: the image can be opened."""
        return np.array([problem is None for problem in self.facts["problem"]])

    def thumbnail(self, image: int, side: int = 128) -> Image.Image | None:
        """The picture, its shorter side of at most `side` pixels; None if it cannot be opened."""
        if self.facts["problem"][image] is not None:
            return None
        photo = Photo(self.paths[image])
        side = min(photo.height, photo.width, side)
        small = photo.cover((side, side), "bilinear")
        small.thumbnail((2 * side, 2 * side))
        return small


@dataclass
class _Files(Dataset[np.ndarray]):
    """The facts about the files at a range of positions."""

    paths: PathList

    def __getitem__(self, positions: range) -> np.ndarray:
        facts: Any = np.zeros(len(positions), FACTS)
        for fact, position in zip(facts, positions, strict=True):
            path = self.paths[position]
            try:
                _read(path, fact)
                fact["problem"] = None
            except ImageError as error:
                fact["problem"] = str(error).removeprefix(f"{printable_path(path)}: ")
            except MemoryError:
                fact["problem"] = "not enough memory to open it"
        return facts


def _read(path: str, fact: Any) -> None:
    """Sets the fields of a file; raises ImageError if it cannot be opened."""
    photo = Photo(path)
    side = min(photo.height, photo.width, SHORT_SIDE)
    gray = photo.cover((side, side), "bilinear").convert("L")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # size, damaged EXIF fields: `Photo` has judged them
        with Image.open(path) as image, open(path, "rb") as file:
            fact["format"] = image.format
            fact["rotated"] = image.getexif().get(Base.Orientation, 1) in range(2, 9)
            fact["digest"] = file_digest(file, lambda: blake2b(digest_size=16)).digest()
    small = fact["small"] = np.asarray(gray.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    fact["height"], fact["width"] = photo.height, photo.width
    fact["blank"] = small.max() < BRIGHT or small.std() < PLAIN
    x = np.asarray(gray, dtype=np.float32)
    edges = 4 * x[1:-1, 1:-1] - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
    fact["sharpness"] = edges.var() if edges.size else np.inf


def file_findings(pictures: Pictures) -> Iterator[Finding]:
    """What is wrong with single files, and with classes."""
    facts, names = pictures.facts, pictures.names
    for image, problem in enumerate(facts["problem"].tolist()):
        if problem is not None:
            kind = "truncated" if "cut short" in problem else "unreadable"
            yield Finding(kind=kind, subject=names.name(image), image=image, detail=problem)
    sides = np.stack([facts["height"], facts["width"]], 1)
    formats = Image.registered_extensions()
    named = [formats.get(os.path.splitext(path)[1].lower(), "") for path in pictures.paths]
    found = np.char.replace(np.char.replace(facts["format"], "MPO", "JPEG"), "DIB", "BMP")
    rules = {
        "blank": facts["blank"],
        "blurred": ~facts["blank"] & (facts["sharpness"] < SHARP),
        "tiny": sides.min(1) < SIDE,
        "huge": sides.astype(int).prod(1) > HUGE,
        "extension": (found != np.array(named)) & (np.array(named) != ""),
        "rotated": facts["rotated"],
    }
    for kind, holds in rules.items():
        for image in np.flatnonzero(pictures.opened & holds).tolist():
            detail = f"{found[image]}, {sides[image, 1]} x {sides[image, 0]} pixels"
            yield Finding(kind=kind, subject=names.name(image), image=image, detail=detail)
    for name, count in zip(pictures.classes, pictures.splits.class_counts, strict=False):
        if count < FEW:
            yield Finding(kind="few", subject=name, detail=f"{count} images")
    for spellings in same_spelling(pictures.classes):
        yield Finding(kind="names", subject=spellings[0], detail=", ".join(spellings[1:]))


def write_findings(file: Path, pictures: Pictures, findings: Iterable[Finding]) -> None:
    """A CSV with a row per finding."""
    head = ["finding", "image", "split", "label", "detail", "suggested", "certainty"]

    def row(found: Finding) -> list[object]:
        known = ["", ""]
        if found.image is not None:
            known = [SPLITS[pictures.split[found.image]], pictures.label(found.image)]
        certainty = "" if found.certainty is None else f"{found.certainty:.4g}"
        return [found.kind, found.subject, *known, found.detail, found.suggested, certainty]

    _write_csv(file, head, map(row, findings))


def write_fixed(
    file: Path, pictures: Pictures, findings: Sequence[Finding], relabel: float | None
) -> tuple[int, int]:
    """A manifest without unreadable images and copies; returns how many it lacks, and the labels
    changed: those in doubt whose suggestion has a probability of at least `relabel`."""
    drop = ("unreadable", "truncated", "leak", "identical", "copy")
    dropped = {found.image for found in findings if found.kind in drop}
    doubts = {found.image: found for found in findings if found.kind == "doubt"}
    changed, rows = 0, []
    for image, path in enumerate(pictures.paths):
        if image in dropped:
            continue
        label, doubt = pictures.label(image), doubts.get(image)
        if doubt and relabel is not None and (doubt.certainty or 0) >= relabel:
            label, changed = doubt.suggested, changed + 1
        place = os.path.relpath(path, file.parent)
        rows.append([place, label, SPLITS[pictures.split[image]], doubt.suggested if doubt else ""])
    _write_csv(file, ["path", "label", "split", "suggested"], rows)
    return len(dropped), changed


def _write_csv(file: Path, head: list[str], rows: Iterable[Sequence[object]]) -> None:
    with (
        atomic(file) as place,
        # A file name need not be valid Unicode.
        place.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(head)
        writer.writerows(rows)
