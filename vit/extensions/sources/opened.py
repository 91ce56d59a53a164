"""A map-style Dataset as images, labels and names of classes.

Its items are (image, label), or mappings with a column of each, as Hugging Face's are.

Shapes: c channels, h w pixels.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from vit.console import Meter, say
from vit.data.decode import ImageError
from vit.data.items import Kind, Opened
from vit.errors import UserError, some_of

DRAWN = 50
"""Items of which the labels are compared with those that a Dataset lists."""
_UNREADABLE = (OSError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for damaged files."""


class OpenedImages(Opened):
    """The images of a Dataset: PIL images, or arrays `h w` or `h w c`.

    Args:
        dataset: It is indexed by numbers from 0 to its length.
        split: Its name in messages.
        labelled: False if items may be images alone.
        arrays: Images may have any numbers and channels.

    Raises UserError for items without an image or a label, and for images of floats.
    """

    def __init__(self, dataset: Any, split: str, *, labelled: bool, arrays: bool) -> None:
        self.dataset, self.split = dataset, split
        self.places = np.arange(len(dataset))
        with self._naming(0):
            self._first = first = dataset[0]
        self._labels: Sequence[Any] | None = None
        self._columns: list[Any] = [0, 1]
        self._features: Mapping[str, Any] = {}
        """Hugging Face's types of the columns."""
        if isinstance(first, Mapping):
            self._features = getattr(_wholes(dataset)[0], "features", {})
            self._columns = [self._column("Image", "image", "img")]
            self._columns += [self._column("ClassLabel", "label", "labels")] if labelled else []
        elif labelled and not (isinstance(first, tuple | list) and len(first) > 1):
            raise UserError(f"{split}[0] is a {type(first).__name__}, and not (image, label)")
        image = self._image(first)
        kind = str(getattr(image, "dtype", type(image).__name__)).removeprefix("torch.")
        if not isinstance(image, Image.Image | bytes) and kind != "uint8" and not arrays:
            problem = f"the image of {split}[0] is {kind}; give PIL images or uint8"
            raise UserError(f"{problem}, and leave ToTensor and Normalize out of the Dataset")

    def __getitem__(self, index: int) -> Any:
        """The image. Raises ImageError if the Dataset cannot read it, or gives it another label
        than was listed, and its other errors."""
        place = int(self.places[index])
        with self._naming(place):
            item = self.dataset[place]
            image = self._image(item)
            if isinstance(image, Image.Image):
                image.load()
        if self._labels is not None:
            now, listed = plain(item[self._columns[1]]), plain(self._labels[place])
            if now != listed:
                raise ImageError(f"{self.split}[{place}] has the label {now!r}, not {listed!r}")
        if isinstance(image, Image.Image | bytes):
            return image
        pixels = np.asarray(image)
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
            pixels = pixels.transpose(1, 2, 0)
        gray = pixels.ndim == 3 and pixels.shape[2] == 1
        return np.ascontiguousarray(pixels[..., 0] if gray else pixels)

    def known_by(self) -> list[Kind]:
        """Files of a Dataset of bytes; an image of another one may change each time."""
        is_file = True
        with suppress(ImageError):
            is_file = isinstance(self[0], bytes)
        return ["content", "path"] if is_file else []

    def in_blocks(self) -> tuple[np.ndarray, int] | None:
        """Blocks that the Dataset names, if it does."""
        if not hasattr(self.dataset, "in_blocks"):
            return None
        blocks, most = self.dataset.in_blocks()
        return blocks[self.places], most

    def class_names(self) -> list[str]:
        """The classes by number, each once; empty if the Dataset does not name them. UserError for
        sets under one another that name others."""
        names, *others = [self._names_in(whole) for whole in _wholes(self.dataset)]
        if any(other != names for other in others):
            raise UserError(f"the parts of {self.split} name different classes; give them the same")
        if not isinstance(names, list | tuple):
            return []
        # ImageNet's are tuples of synonyms, and two of its classes are cranes.
        return distinct([", ".join(n) if isinstance(n, tuple) else str(n).strip() for n in names])

    def _names_in(self, dataset: object) -> Any:
        feature = getattr(dataset, "features", {}).get(self._columns[1]) if self._features else None
        feature = getattr(feature, "feature", feature)  # a list of them
        return getattr(feature, "names", None) or getattr(dataset, "classes", None)

    def labels(self) -> tuple[Sequence[Any], bool]:
        """Labels that the Dataset lists, if DRAWN items have them, or else those of a pass over all
        items; and whether a transform has changed them, so that they are no numbers of classes."""
        column, total = self._columns[1], len(self.dataset)
        raw, labels = (_listed(self.dataset, column, changed) for changed in (False, True))
        if labels is None or not self._is_right(labels):
            why = "its items have others than it lists" if labels else "it lists no `targets`"
            say(f"{self.split}: its labels are read in a pass over all images ({why})")
            labels = []
            with Meter(f"labels of {self.split}", total, "img") as meter:
                for place in range(total):
                    with self._naming(place):
                        labels.append(self.dataset[place][column])
                    meter.advance()
        self._labels = labels
        return labels, raw is not None and [*map(plain, raw)] != [*map(plain, labels)]

    def _is_right(self, labels: Sequence[Any]) -> bool:
        """True if DRAWN items that can be read have these labels."""
        if getattr(self.dataset, "lists_labels", False):
            return True
        drawn = np.random.default_rng(0).permutation(len(self.dataset))[:DRAWN].tolist()
        with isolate_rng():
            for place in drawn:
                with suppress(ImageError), self._naming(place):
                    if plain(self.dataset[place][self._columns[1]]) != plain(labels[place]):
                        return False
        return True

    @contextmanager
    def _naming(self, place: int) -> Iterator[None]:
        """Names the item in an exception of the Dataset."""
        try:
            yield
        except _UNREADABLE as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ImageError(f"{self.split}[{place}] cannot be read: {reason}") from error
        except Exception as error:
            error.add_note(f"This is {self.split}[{place}].")
            raise

    def _image(self, item: Any) -> Any:
        return item[self._columns[0]] if isinstance(item, tuple | list | Mapping) else item

    def _column(self, kind: str, *usual: str) -> str:
        """The column that has the type, or else a usual name. UserError if there is none."""
        names = [n for n in self._first if type(self._features.get(n)).__name__ == kind]
        if len(names) != 1:
            names = [name for name in usual if name in self._first]
        if not names:
            columns = some_of(map(repr, self._first), 20)
            raise UserError(f"{self.split} has the columns {columns}; name one {usual[0]!r}")
        return names[0]


def distinct(names: list[str]) -> list[str]:
    """The names; one that occurs twice is followed by its number."""
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} ({at})" for at, name in enumerate(names)]


def _wholes(dataset: object) -> list[Any]:
    """The Datasets of which a Subset or a ConcatDataset, in any nesting, is made."""
    if type(dataset) is Subset:
        return _wholes(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return [whole for part in dataset.datasets for whole in _wholes(part)]
    return [dataset]


def _listed(dataset: Any, column: Any, changed: bool) -> Sequence[Any] | None:
    """Labels that need no image to be opened; `changed` by a transform of torchvision's, and none
    of a Dataset that changes whole items, as Hugging Face's with_transform does."""
    if type(dataset) is Subset:
        labels = _listed(dataset.dataset, column, changed)
        return None if labels is None else [labels[place] for place in dataset.indices]
    if type(dataset) is ConcatDataset:
        parts = [_listed(part, column, changed) for part in dataset.datasets]
        return None if None in parts else [label for part in parts for label in part or ()]
    if isinstance(dataset, list | tuple):
        return [item[column] for item in dataset]
    if isinstance(column, str):
        custom = getattr(dataset, "format", {}).get("type") == "custom"
        listed = hasattr(dataset, "with_format") and not (changed and custom)
        return list(dataset.with_format(None)[column]) if listed else None
    labels: Any = getattr(dataset, "targets", None)
    if not hasattr(labels, "__len__") or len(labels) != len(dataset):
        return None
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    change = getattr(dataset, "target_transform", None) if changed else None
    return labels if change is None else [change(label) for label in labels]


def plain(label: Any) -> Any:
    """Numbers and lists of Python for those of NumPy and torch; other labels as they are."""
    label = label.tolist() if hasattr(label, "tolist") else label
    return list(label) if isinstance(label, tuple) else label
