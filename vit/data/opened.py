"""A map-style Dataset as images, labels and names of classes.

Its items are (image, label), or mappings with a column of each, as Hugging Face's are.

Shapes: c channels, h w pixels.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

import numpy as np
from PIL import Image
from torch.utils.data import Subset

from vit.console import Meter, say
from vit.data.decode import ImageError
from vit.errors import UserError, some_of

_UNREADABLE = (OSError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for damaged files."""


class Opened:
    """n images, at `places` among those of a Dataset or of shards, that are opened one by one."""

    places: np.ndarray

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: np.ndarray) -> Self:
        """The images at `indices`, in that order."""
        chosen = copy(self)
        chosen.places = self.places[indices]
        return chosen


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
        self._columns: list[Any] = [0, 1]
        self._features: Mapping[str, Any] = {}
        """Hugging Face's types of the columns."""
        if isinstance(first, Mapping):
            self._features = getattr(_whole(dataset), "features", {})
            self._columns = [self._column("Image", "image", "img")]
            self._columns += [self._column("ClassLabel", "label", "labels")] if labelled else []
        elif labelled and not (isinstance(first, tuple | list) and len(first) > 1):
            raise UserError(f"{split}[0] is a {type(first).__name__}, and not (image, label)")
        image = self._image(first)
        kind = str(getattr(image, "dtype", type(image).__name__)).removeprefix("torch.")
        if not isinstance(image, Image.Image | bytes) and kind != "uint8" and not arrays:
            found = f"the image of {split}[0] is {kind}; give PIL images or uint8"
            raise UserError(f"{found}, and leave ToTensor and Normalize out of the Dataset")

    def __getitem__(self, index: int) -> Any:
        """The image. Raises ImageError if the Dataset cannot read it, and its other errors."""
        place = int(self.places[index])
        with self._naming(place):
            image = self._image(self.dataset[place])
            if isinstance(image, Image.Image):
                image.load()
        if isinstance(image, Image.Image | bytes):
            return image
        pixels = np.asarray(image)
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
            pixels = pixels.transpose(1, 2, 0)
        gray = pixels.ndim == 3 and pixels.shape[2] == 1
        return np.ascontiguousarray(pixels[..., 0] if gray else pixels)

    def in_blocks(self) -> tuple[np.ndarray, int] | None:
        """What the Dataset says for `vit.data.sources.ImageSet.in_blocks`, if it does."""
        if not hasattr(self.dataset, "in_blocks"):
            return None
        blocks, most = self.dataset.in_blocks()
        return blocks[self.places], most

    def class_names(self) -> list[str]:
        """The classes by number, each once; empty if the Dataset does not name them."""
        feature = self._features.get(self._columns[1])
        feature = getattr(feature, "feature", feature)  # a list of them
        names = getattr(feature, "names", None) or getattr(_whole(self.dataset), "classes", None)
        if not isinstance(names, list | tuple):
            return []
        # ImageNet's are tuples of synonyms, and two of its classes are cranes.
        return distinct([", ".join(n) if isinstance(n, tuple) else str(n).strip() for n in names])

    def labels(self) -> Sequence[Any]:
        """Those that the Dataset lists, if it begins with that of its first item; or else those of
        a pass over all items."""
        column, total = self._columns[1], len(self.dataset)
        known = _known_labels(self.dataset, column)
        if known is not None and str(plain(known[0])) == str(plain(self._first[column])):
            return known
        say(f"{self.split}: its labels are read in a pass over all images (it lists no `targets`)")
        labels: list[Any] = []
        with Meter(f"labels of {self.split}", total, "img") as meter:
            for place in range(total):
                with self._naming(place):
                    labels.append(self.dataset[place][column])
                meter.advance()
        return labels

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
        found = [n for n in self._first if type(self._features.get(n)).__name__ == kind]
        if len(found) != 1:
            found = [name for name in usual if name in self._first]
        if not found:
            columns = some_of(map(repr, self._first), 20)
            raise UserError(f"{self.split} has the columns {columns}; name one {usual[0]!r}")
        return found[0]


def distinct(names: list[str]) -> list[str]:
    """The names; one that occurs twice is followed by its number."""
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} ({at})" for at, name in enumerate(names)]


def _whole(dataset: Any) -> Any:
    """The Dataset of which a Subset is one."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def _known_labels(dataset: Any, column: Any) -> Sequence[Any] | None:
    """Labels that need no image to be opened."""
    if type(dataset) is Subset:
        labels = _known_labels(dataset.dataset, column)
        return None if labels is None else [labels[place] for place in dataset.indices]
    if isinstance(dataset, list | tuple):
        return [item[column] for item in dataset]
    if isinstance(column, str):
        return list(dataset.with_format(None)[column]) if hasattr(dataset, "with_format") else None
    labels: Any = getattr(dataset, "targets", None)
    if not hasattr(labels, "__len__") or len(labels) != len(dataset):
        return None
    return labels.tolist() if hasattr(labels, "tolist") else labels


def plain(label: Any) -> Any:
    """A number of Python for one of NumPy or torch; other labels as they are."""
    scalar = hasattr(label, "item") and getattr(label, "ndim", None) == 0
    return label.item() if scalar else label
