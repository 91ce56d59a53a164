"""A teacher's answers about unlabelled images: their file, what is kept of it, and how that is
learned beside train (Noisy Student, arXiv:1911.04252). Shapes: n images, b batch, k classes."""

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import ConcatDataset

from vit.console import Meter
from vit.data.decode import ImageError, open_input
from vit.data.settings import Loading
from vit.data.sources import ImageSet, Mixed, Mixture, PathList, Splits
from vit.errors import AT_LEAST_ONE, BELOW_ONE, NOT_NEGATIVE, UserError, check_range
from vit.extensions.serving.reading import range_loader
from vit.weights.sealed import read_sealed, write_sealed


@dataclass(frozen=True)
class Answers:
    """Distributions over classes, and the images that they are of."""

    values: np.ndarray
    """float16 `n k`."""
    names: list[str]
    """Paths below a folder."""
    classes: list[str]
    weights: str
    """A digest of the teacher, with all that its answers depend on."""

    def _about(self) -> str:
        return json.dumps([self.names, self.classes, self.weights])

    @property
    def digest(self) -> str:
        """BLAKE2b over everything."""
        content = self._about().encode() + self.values.tobytes()
        return blake2b(content, digest_size=16).hexdigest()

    def write(self, file: Path) -> None:
        """Writes a sealed file, whole or not at all."""
        write_sealed(file, {"answers": torch.from_numpy(self.values)}, self._about())

    @classmethod
    def read(cls, file: str | Path) -> "Answers":
        """The content of a file. UserError if it is missing, damaged, or something else."""
        try:
            tensors, about = read_sealed(Path(file))
            answers = cls(tensors["answers"].numpy(), *json.loads(about))
            if answers.values.shape == (len(answers.names), len(answers.classes)):
                return answers
        except (KeyError, ValueError, TypeError):
            pass
        remedy = "delete it, and the same `vit selftrain` writes it again"
        raise UserError(f"{file} does not hold a teacher's answers as they were written: {remedy}")

    def chosen(self, confidence: float, per_class: int | None) -> np.ndarray:
        """Rows to learn: those whose largest value is `confidence` at least, ascending; or with
        `per_class` so many of each most probable class, the surest first, repeated where few.

        UserError if there are none.
        """
        surest, classes = self.values.max(1), self.values.argmax(1)
        rows = np.flatnonzero(surest >= np.float16(confidence))  # rounded as the answers are
        if not len(rows):
            none = f"confidence={confidence:g} leaves none of {len(surest):,} unlabelled images"
            raise UserError(f"{none}; give a lower --confidence, at most {surest.max():.3g}")
        if per_class is None:
            return rows
        rows = rows[np.argsort(-surest[rows], kind="stable")]
        parts = [rows[classes[rows] == k] for k in range(len(self.classes))]
        return np.concatenate([np.resize(part, per_class) for part in parts if len(part)])


@dataclass(frozen=True)
class _Targets:
    """Distributions float32 `k`, or `b k`: of a label a one, of the images after these answers."""

    labels: np.ndarray
    answers: np.ndarray

    def __len__(self) -> int:
        return len(self.labels) + len(self.answers)

    def __getitem__(self, index: Any) -> np.ndarray:
        if np.ndim(index):
            return np.stack([self[place] for place in index])
        if index >= len(self.labels):
            row = self.answers[index - len(self.labels)].astype(np.float32)
            return row / row.sum()  # answers were rounded to 16 bits
        row = np.zeros(self.answers.shape[1], dtype=np.float32)
        row[self.labels[index]] = 1
        return row


@dataclass(frozen=True, kw_only=True)
class Pseudo(Mixture):
    """Unlabelled images, learned by the answers of a teacher that `vit selftrain` writes."""

    paths: ClassVar = ("answers", "root")
    answers: str
    """File of the answers."""
    root: str
    """Folder of the images that they name."""
    ratio: float = 3.0
    """Unlabelled images for each labelled one in a batch, whose size stays; an epoch is one of the
    labelled images. 3 is that of google-research/noisystudent. 0 leaves them out."""
    confidence: float = 0.3
    """Images whose most probable class is less probable are left out; in [0, 1)."""
    per_class: int | None = None
    """Images of each most probable class: the surest, or repeated. Default: those there are."""
    hard: bool = False
    """The most probable class is the target, not the distribution."""

    def __post_init__(self) -> None:
        check_range("pseudo.ratio", self.ratio, NOT_NEGATIVE)
        check_range("pseudo.confidence", self.confidence, BELOW_ONE)
        if self.per_class is not None:
            check_range("pseudo.per_class", self.per_class, AT_LEAST_ONE)

    def check_loss(self, kind: str | None) -> None:
        if kind == "bce" and not self.hard:
            raise UserError(
                "model.loss.kind=bce makes a 'yes' of any probability in a teacher's answers: add "
                "--hard (data.pseudo.hard), or choose softmax or sigmoid"
            )

    def mixed(self, splits: Splits) -> Mixed:
        """UserError for answers of a teacher of other classes, and if none is kept."""
        train, answers = splits.train, Answers.read(self.answers)
        if answers.classes != splits.classes or splits.multilabel:
            raise UserError(f"{self.answers} has answers of a teacher of other classes")
        rows = answers.chosen(self.confidence, self.per_class)
        learned, places = np.unique(rows, return_inverse=True)
        values, names = answers.values[learned], PathList(answers.names).select(learned)
        labels: Any = _Targets(train.labels, values)
        if self.hard:
            labels = np.concatenate([train.labels, values.argmax(1)])
        both: Any = [train.items, names.select(slice(None), self.root)]
        items: Any = ConcatDataset(both)
        every = PathList(chain(train.names.encoded(), names.encoded()))
        digest = blake2b(f"{answers.digest} {self.hard} {rows.tolist()}".encode(), digest_size=16)
        others = (len(train) + places, self.ratio)
        alone = ImageSet(both[1], np.zeros(len(names), dtype=np.int64), names)
        return Mixed(ImageSet(items, labels, every), others, digest.hexdigest(), alone)


def check_unseen(images: ImageSet, splits: Splits, channels: int | None, loading: Loading) -> None:
    """UserError if the pixels of one of `images` are those of one in val or test, or if one cannot
    be read, unless `loading` skips those."""
    every = [*filter(None, (splits.val, splits.test)), images]
    items: Any = [each.items for each in every]
    names = list(chain.from_iterable(each.names for each in every))
    skips = loading.on_error == "skip"
    read, contents = partial(_contents, ConcatDataset(items), channels, skips), []
    with Meter("comparing with val and test", len(names), "img") as meter:
        for digests in range_loader(read, len(names), 64, num_workers=loading.num_workers):
            contents += digests
            meter.advance(len(digests))
    first = len(names) - len(images)
    held = dict(zip(contents[:first], names, strict=False))
    others = zip(names[first:], contents[first:], strict=True)
    copies = [f"{name} ({held[digest]})" for name, digest in others if digest and digest in held]
    if copies:
        raise UserError(
            f"{len(copies):,} of {len(images):,} unlabelled images are also in val or test, such "
            f"as {copies[0]}; take them out"
        )


def _contents(items: Any, channels: int | None, skips: bool, positions: range) -> list[bytes]:
    """Digests of the pixels; empty for an image that cannot be opened and is skipped."""
    digests = [b""] * len(positions)
    for place, position in enumerate(positions):
        with suppress(*[ImageError] * skips):
            pixels = np.asarray(open_input(items[position], channels))
            content = f"{pixels.shape}".encode() + pixels.tobytes()
            digests[place] = blake2b(content, digest_size=16).digest()
    return digests
