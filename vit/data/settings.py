"""Groups of arguments of ImageData."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

from vit.errors import AT_LEAST_ONE, BELOW_ONE, NOT_NEGATIVE, UserError, check_range
from vit.preprocessing import HALF, CropRounding, Interpolation, Preprocess, Resize, check_choice

if TYPE_CHECKING:  # it imports this module
    from vit.data.trained_on import Known

Cache = Literal["auto", "none"]
Seen = Literal["refuse", "allow"]
Labels = Literal["plain", "tree"]
"""Names of classes are plain, or paths in a tree."""


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """Preprocessing of evaluation images, and the normalisation of all.

    What is not given is that of the pretrained weights, or else the default named.
    """

    resize: Resize | None = None
    """crop (default) keeps the aspect ratio and cuts off what sticks out; squash stretches; pad
    shows the whole image between borders of the mean colour."""

    crop_fraction: float | None = None
    """Side of the centre crop over the resized side, in (0, 1]; 0.875 (default) is 256 to 224."""

    crop_rounding: CropRounding | None = None
    """Half a pixel of the centre crop's margin is rounded to the even number (default, as in
    torchvision and timm) or down (floor, as in transformers)."""

    interpolation: Interpolation | None = None
    """Filter of the resize at evaluation: bilinear (default) or bicubic."""

    mean: tuple[float, ...] | None = None
    """Subtracted from red, green and blue in [0, 1]; 0.5 by default. One number per channel where
    data.channels is given; the default is then that of the training images."""

    std: tuple[float, ...] | None = None
    """Divides red, green and blue after that; 0.5 by default, or that of the training images."""

    def preprocess(self, image_size: tuple[int, int], channels: int | None = None) -> Preprocess:
        """The preprocessing for (height, width); with `channels` for images that are not RGB.

        Raises UserError for an impossible value.
        """
        half = HALF[:1] * (channels or 3)
        values = {name: value for name, value in asdict(self).items() if value is not None}
        default = Preprocess(image_size=image_size, mean=half, std=half, channels=channels)
        return default.changed(**values)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The training images that make an epoch."""

    balanced: bool = False
    """Draws classes equally often, whatever their sizes, with replacement."""

    repeats: int = 1
    """Repeated augmentation: copies of each image drawn, augmented differently; 3 in DeiT."""

    def __post_init__(self) -> None:
        check_range("sampling.repeats", self.repeats, AT_LEAST_ONE)


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """Val and test cut from train if they are lacking."""

    val_fraction: float = 0.1
    """Share of train that becomes val, class by class, if there is no val; in [0, 1)."""

    test_fraction: float = 0.1
    """Share that becomes test if a folder or manifest has neither val nor test; in [0, 1)."""

    seed: int | None = None
    """Seed of these cuts. Default: that of the run."""

    seen: Seen = "refuse"
    """Val and test images that the pretrained weights were trained on: refuse cuts from others, and
    ends with an error where splits are given; allow takes them, too."""

    def __post_init__(self) -> None:
        check_choice("splits.seen", self.seen, get_args(Seen))
        check_range("splits.val_fraction", self.val_fraction, BELOW_ONE)
        check_range("splits.test_fraction", self.test_fraction, BELOW_ONE)
        if self.seed is not None:
            check_range("splits.seed", self.seed, NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of a CSV or Parquet file, in any case."""

    path: str = "path"
    """Column with the path of each image."""

    label: str = "label"
    """Column with its class, or classes."""

    split: str = "split"
    """Column with train, val or test; it may be absent."""

    group: str | None = None
    """Column with the patient, video, burst or place of each image: images of one group stay in one
    split, and in one fold where a head is fitted. An empty cell is a group of its own."""

    def roles(self, header: Sequence[str]) -> list[str]:
        """Role, or lower case, of each name of a header; "" for the name of a role of another."""
        roles = {} if self.group is None else {self.group.lower(): "group"}
        roles |= {self.path.lower(): "path", self.label.lower(): "label"}
        roles[self.split.lower()] = "split"
        lower = [name.lower() for name in header]
        return [roles.get(name, "" if name in roles.values() else name) for name in lower]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Reading of image files."""

    num_workers: int | None = None
    """Processes that read images, for each training process. Default: one per core, divided among
    the training processes of the machine, at most 8; none where batches are cut from memory."""

    cache: Cache = "auto"
    """Keeps images of one size decoded in memory; batches are the same. auto: in a fit, if they are
    small (64 x 64 pixels), take at most 1 GiB, and augmentation is windows and flips alone; then
    batches are cut 20 times as fast. none: never."""

    on_error: Literal["error", "skip"] = "error"
    """On an unreadable image: error stops and names it; skip names it, counts it and goes on
    (training takes the next image in its place)."""

    def __post_init__(self) -> None:
        if self.num_workers is not None:
            check_range("loading.num_workers", self.num_workers, NOT_NEGATIVE)
        check_choice("loading.cache", self.cache, get_args(Cache))


@dataclass(frozen=True, kw_only=True)
class ModelClasses:
    """The classes of a model that exists."""

    names: list[str]
    """In the order of its outputs; none if it has no classes."""
    multilabel: bool = False


@dataclass(frozen=True)
class Reading:
    """The way in which found files become images, labels and splits."""

    cut: Splitting = Splitting()
    columns: Columns = Columns()
    separator: str | None = None
    """Between labels in a cell."""
    _: KW_ONLY
    labelled: bool = True
    """If false, all images are taken, and there are no classes."""
    model: ModelClasses | None = None
    """There is one split, labelled by its classes: test, or else val, or else train; or all images
    are test, where splits have no names. A class may have no images."""
    arrays: bool = False
    """.npy files are images, too."""
    tree: bool = False
    """Names of classes are paths, in a folder those of the folders with images."""
    known: "Known | None" = None
    """Images that weights learned, of which none is cut from train."""

    def refuse_columns(self, where: str) -> None:
        """UserError for options of lists where images are not listed but trained on."""
        options = {f"columns.{name}": getattr(self.columns, name) for name in ("group", "path")}
        for name, value in (options | {"label_separator": self.separator}).items():
            if value not in (None, Columns.path) and self.labelled and self.model is None:
                raise UserError(f"{where} is no list of files: leave out data.{name}={value!r}")

    @property
    def has_classes(self) -> bool:
        return self.labelled if self.model is None else bool(self.model.names)
