"""Findings about the pictures of a folder or manifest; nothing is moved or deleted.

Shapes: n images of all splits, in the order train, val, test; p pairs; s = SIDE pixels. Small
pictures are gray and squashed to a square; if they differ little, so do their hashes.
"""

import csv
import os
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import ConcatDataset

from vit.console import Meter
from vit.data.decode import ImageError, turned
from vit.data.find import check_source, find_splits
from vit.data.manifest import SEPARATOR
from vit.data.photo import Photo
from vit.data.roots import source_of
from vit.data.scan import entries
from vit.data.settings import Columns, Reading, Splitting
from vit.data.sources import SPLITS, PathList, group_numbers
from vit.extensions.serving.reading import range_loader, reading_problem
from vit.writing import atomic, for_spreadsheet

SIDE = 32
"""Pixels of a side of the small pictures."""
BITS_APART = 6
"""Bits of 64 in which the hashes of copies differ at most; re-encoding changes two or so."""
_ROWS = 64
"""Hashes that are compared with all at a time."""
FEW = 20
"""Training images of a class, fewer of which are a finding."""
KINDS = {
    "unreadable": ("cannot be opened", "replace; --fix leaves them out"),
    "truncated": ("cut short", "copy again; --fix leaves them out"),
    "leak": ("the same picture in two splits", "--fix keeps that of test, or of val"),
    "divided": ("of a group in several splits", "--fix moves them to that of most"),
    "conflict": ("copies with different labels", "look which is right; --fix keeps one"),
    "doubt": ("label in doubt", "look; --relabel P changes the surest"),
    "identical": ("the same file twice", "--fix keeps one"),
    "copy": ("the same picture twice", "--fix keeps the larger one"),
    "blank": ("nearly black, or of one colour", "look, and delete"),
    "blurred": ("blurred", "look, and delete"),
    "tiny": (f"a side below {SIDE} pixels", "replace by a larger one"),
    "huge": ("more than 50 megapixels", "make it smaller: it takes seconds to read"),
    "extension": ("another format than its name says", "fine here; other programs may fail"),
    "rotated": ("turned by its EXIF tag", "fine here; other programs may not turn it"),
    "few": (f"class of under {FEW} training images", "five can do; more are better"),
    "names": ("class names of one spelling", "rename, if they are one class"),
}
"""Kind of finding -> what it is, and what to do; the worst first."""
SHORT_SIDE = 256
"""Pixels of the shorter side at which blur is measured; fewer in a smaller picture."""
SHARP = 30.0
"""Variance of the Laplacian of a sharp picture: that of all of 250 photos, and of 6 % of them after
a Gaussian blur of two pixels."""
BRIGHT, PLAIN = 40, 3.0
"""Lightest pixel of a small picture that is nearly black; deviation in one of one colour."""
HUGE = 50_000_000
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
    """Images of a source, all of which `read` opens.

    Attributes: `classes`; and of the n images `items` (paths, or bytes of shards), `names`,
    `labels`, `split` (index into SPLITS) and `facts` (FACTS).
    """

    def __init__(self, root: str, *, tree: bool = False, group: str | None = None) -> None:
        """Raises UserError where `vit fit` would; but pictures beside each other need no class.

        `tree`: as `vit fit --data.labels tree`, names of classes are paths. `group`: the column of
        groups.
        """
        check_source(None, root)
        place, whole = Path(root).expanduser(), Splitting(val_fraction=0.0, test_fraction=0.0)
        beside = place.is_dir() and source_of(root) is None
        labelled = not beside or any(entry.is_dir() for entry in entries(str(place)))
        options: Any = {"columns": Columns(group=group), "labelled": labelled, "tree": tree}
        self.splits = find_splits(None, root, Reading(cut=whole, **options))
        self.classes, self.multilabel = self.splits.classes, self.splits.multilabel
        present = self.splits.present()
        sets = present.values()
        items: Any = [images.items for images in sets]
        self.items: ConcatDataset[Any] = ConcatDataset(items)
        self.names = PathList(chain.from_iterable(images.names.encoded() for images in sets))
        self.labels = np.concatenate([images.labels for images in sets])
        self.split = np.repeat([SPLITS.index(name) for name in present], [*map(len, sets)])
        self.group = group
        """Name of their column."""
        groups = [images.groups for images in sets if images.groups is not None]
        self.groups = (
            PathList(chain.from_iterable(each.encoded() for each in groups)) if groups else None
        )
        """Their names, if there is a column of them."""
        self.facts = np.zeros(len(self.items), FACTS)

    def label(self, image: int) -> str:
        """The class of an image, or its classes as in a list."""
        if not self.classes:
            return ""
        labels = self.labels[image]
        places = np.flatnonzero(labels) if self.multilabel else [labels]
        return SEPARATOR.join(self.classes[place] for place in places)

    def place(self, image: int) -> str:
        """The label and split of an image."""
        return f"{self.label(image)} ({SPLITS[self.split[image]]})"

    @property
    def whole_split(self) -> np.ndarray:
        """`split` of each image, but one for all of a group."""
        return self.split if self.groups is None else whole_splits(self.groups, self.split)

    def read(self, num_workers: int | None = None) -> None:
        """Fills in `facts`, in worker processes, by default one per core."""
        done, read = 0, partial(_facts_of, self.items)
        with Meter("checking", len(self.facts), "img") as meter:
            for facts in range_loader(read, len(self.facts), _BATCH, num_workers=num_workers):
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
        photo = Photo(self.items[image])
        side = min(photo.height, photo.width, side)
        small = photo.cover((side, side), "bilinear")
        small.thumbnail((2 * side, 2 * side))
        return small


def _facts_of(items: ConcatDataset[Any], positions: range) -> np.ndarray:
    facts: Any = np.zeros(len(positions), FACTS)
    for fact, position in zip(facts, positions, strict=True):
        item = ""  # a file in a shard may be damaged
        try:
            item = items[position]
            _read(item, fact)
            fact["problem"] = None
        except (ImageError, MemoryError) as error:
            fact["problem"] = reading_problem(item, error)
    return facts


def _read(item: Any, fact: Any) -> None:
    """Sets the fields of an image; raises ImageError if it cannot be opened."""
    photo = Photo(item)
    side = min(photo.height, photo.width, SHORT_SIDE)
    gray = photo.cover((side, side), "bilinear").convert("L")
    if isinstance(item, str | bytes):
        content = item if isinstance(item, bytes) else Path(item).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # size, damaged EXIF fields: `Photo` has judged them
            with Image.open(BytesIO(content)) as image:
                fact["format"] = image.format
                fact["rotated"] = turned(image) is not None
    else:  # a source has decoded it
        content = photo.image().tobytes()
    fact["digest"] = blake2b(content, digest_size=16).digest()
    small = fact["small"] = np.asarray(gray.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    fact["height"], fact["width"] = photo.height, photo.width
    fact["blank"] = small.max() < BRIGHT or small.std() < PLAIN
    x = np.asarray(gray, dtype=np.float32)
    edges = 4 * x[1:-1, 1:-1] - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
    fact["sharpness"] = edges.var() if edges.size else np.inf


def file_findings(pictures: Pictures) -> Iterator[Finding]:
    """Findings about single files, and about classes."""
    facts, names = pictures.facts, pictures.names
    for image, problem in enumerate(facts["problem"].tolist()):
        if problem is not None:
            kind = "truncated" if "cut short" in problem else "unreadable"
            yield Finding(kind=kind, subject=names.name(image), image=image, detail=problem)
    sides = np.stack([facts["height"], facts["width"]], 1)
    formats = Image.registered_extensions()
    named = [formats.get(os.path.splitext(name)[1].lower(), "") for name in names]
    named, actual = (
        np.char.replace(np.char.replace(kinds, "MPO", "JPEG"), "DIB", "BMP")
        for kinds in (np.array(named), facts["format"])
    )
    rules = {
        "blank": facts["blank"],
        "blurred": ~facts["blank"] & (facts["sharpness"] < SHARP),
        "tiny": sides.min(1) < SIDE,
        "huge": sides.astype(int).prod(1) > HUGE,
        "extension": (actual != named) & (named != ""),
        "rotated": facts["rotated"],
    }
    for kind, holds in rules.items():
        for image in np.flatnonzero(pictures.opened & holds).tolist():
            detail = f"{actual[image]}, {sides[image, 1]} x {sides[image, 0]} pixels"
            yield Finding(kind=kind, subject=names.name(image), image=image, detail=detail)
    whole = pictures.whole_split
    for image in np.flatnonzero(whole != pictures.split).tolist():
        assert pictures.groups is not None
        detail = f"most of {pictures.groups.name(image)!r} is in {SPLITS[whole[image]]}"
        yield Finding(kind="divided", subject=names.name(image), image=image, detail=detail)
    train = pictures.splits.train
    usable = train.select(np.flatnonzero(pictures.opened[: len(train)]))
    counts = replace(pictures.splits, train=usable).class_counts
    for name, count in zip(pictures.classes, counts, strict=False):
        if count < FEW:
            yield Finding(kind="few", subject=name, detail=f"{count} images")
    for spellings in same_spelling(pictures.classes):
        yield Finding(kind="names", subject=spellings[0], detail=", ".join(spellings[1:]))


def write_findings(
    file: Path, pictures: Pictures, findings: Iterable[Finding], *, spreadsheet: bool = False
) -> None:
    """A CSV with a row per finding; `spreadsheet`: none of its cells is a formula."""
    head = ["finding", "image", "split", "label", "detail", "suggested", "certainty"]

    def row(finding: Finding) -> list[object]:
        known = ["", ""]
        if finding.image is not None:
            known = [SPLITS[pictures.split[finding.image]], pictures.label(finding.image)]
        certainty = "" if finding.certainty is None else f"{finding.certainty:.4g}"
        row = [finding.kind, finding.subject, *known, finding.detail, finding.suggested, certainty]
        return for_spreadsheet(row) if spreadsheet else row

    _write_csv(file, head, map(row, findings))


def write_fixed(
    file: Path, pictures: Pictures, findings: Sequence[Finding], relabel: float | None
) -> tuple[int, int]:
    """A manifest without unreadable images and copies, and with whole groups; returns how many it
    lacks, and the labels changed: those in doubt whose suggestion has a probability of at least
    `relabel`."""
    drop = ("unreadable", "truncated", "leak", "identical", "copy")
    dropped = {finding.image for finding in findings if finding.kind in drop}
    surest_last = (finding for finding in reversed(findings) if finding.kind == "doubt")
    doubts = {finding.image: finding for finding in surest_last}
    conflicts = {(f.other, f.image) for f in findings if f.kind == "conflict"}
    others = {
        remaining: pictures.label(image) for remaining, image in conflicts if image is not None
    }
    split, groups = pictures.whole_split, pictures.groups
    changed, rows = 0, []
    for image in range(len(pictures.items)):
        if image in dropped:
            continue
        path = pictures.items[image]
        label, doubt = pictures.label(image), doubts.get(image)
        if doubt and relabel is not None and (doubt.certainty or 0) >= relabel:
            label, changed = doubt.suggested, changed + 1
        place = os.path.relpath(path, file.parent)
        suggested = doubt.suggested if doubt else others.get(image, "")
        row = [place, label, SPLITS[split[image]], suggested]
        rows.append(row if groups is None else [*row, groups.name(image)])
    head = [
        "path",
        "label",
        "split",
        "suggested",
        *([pictures.group] if groups is not None else []),
    ]
    _write_csv(file, head, rows)
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


def hashes(small: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Perceptual hashes, uint64 `n`, of small pictures `n s s`, and those of their mirror images.

    pHash: a bit for each of the 8 x 8 lowest frequencies of the cosine transform that is above
    their median (C. Zauner, 2010, section 3.2.1). Mirroring changes the sign of odd frequencies.
    """
    low = _cosines() @ small.astype(np.float32) @ _cosines().T
    mirrored = low * np.where(np.arange(8) % 2, -1, 1)
    first, second = (
        np.packbits(each > np.median(each, axis=(1, 2), keepdims=True), axis=None).view(np.uint64)
        for each in (low, mirrored)
    )
    return first, second


@cache
def _cosines() -> np.ndarray:
    """The first rows, `8 s`, of the cosine transform (DCT-II)."""
    places = (np.arange(SIDE) + 0.5) / SIDE
    return np.cos(np.pi * np.arange(8)[:, None] * places).astype(np.float32)


def near_pairs(small: np.ndarray) -> np.ndarray:
    """Pairs `p 2` of pictures, or of a picture and a mirror image, with hashes close together."""
    parts = [np.empty((0, 2), dtype=np.int64)]
    if not len(small):  # unreadable or of one colour, all of them
        return parts[0]
    straight, mirrored = hashes(small)
    for start in range(0, len(small), _ROWS):
        rows = straight[start : start + _ROWS, None]
        close = np.bitwise_count(rows ^ straight[start:]) <= BITS_APART
        close |= np.bitwise_count(rows ^ mirrored[start:]) <= BITS_APART
        pairs = np.argwhere(close) + start
        parts.append(pairs[pairs[:, 0] < pairs[:, 1]])
    return np.concatenate(parts)


def whole_splits(groups: Iterable[str], split: np.ndarray) -> np.ndarray:
    """The split of each image, `n`, that leaves groups whole: the one which has most images of the
    group before, of several the last.

    `split`: numbers 0 to 2.
    """
    _, places = np.unique(group_numbers(groups), return_inverse=True)
    counts = np.zeros((places.max() + 1, 3), dtype=np.int64)
    np.add.at(counts, (places, split), 1)
    return 2 - counts[:, ::-1].argmax(1)[places]


def same_spelling(classes: Sequence[str]) -> list[list[str]]:
    """Names of classes that differ only in case, blanks, Unicode form or a final s: Cat, cats."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        form = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        groups.setdefault(form.removesuffix("s"), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
