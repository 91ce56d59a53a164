"""The pictures that a model is tested on: official ones, or images that they are generated from.

ImageNet-C is read from its folders, CIFAR-10-C and CIFAR-100-C from their files.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from vit.data.corruptions import KINDS, STRENGTHS, Version
from vit.data.sources import ImageSet, PathList
from vit.errors import UserError
from vit.evaluation.frozen import Frozen
from vit.evaluation.robustness import Source, output_names, relabelled
from vit.runs.evaluate import opened
from vit.runs.files import is_run

Place = tuple[str, str | None]
"""A name, and the folder or file; None for a set of the catalog."""


def find_pictures(
    frozen: Frozen, model: str, data: Place, clean: Place | None, data_dir: str | None
) -> Source:
    """The official pictures in `data`, beside the images `clean` that they were made of; or the
    images `data`, from which pictures are generated.

    Of a folder these are test/, or val/, or all; of the folder that a run was trained on, those
    that it held out. Labels are matched by the names of the classes, those of CIFAR by number.

    Raises UserError for what is not there, and for classes that the model lacks.
    """
    source = None if data[1] is None else _official(Path(data[1]), frozen)
    if source is None:
        if clean is not None:
            raise UserError(
                f"--clean is for official pictures, and {data[0]} is none; leave it out"
            )
        classes, images = _given(frozen, model, data, data_dir)
        return Source(classes, {None: images})
    if clean is not None:
        classes, images = _given(frozen, model, clean, data_dir)
        source.sets[None] = lambda: relabelled(images(), classes, source.classes)
    return source


def _given(
    frozen: Frozen, model: str, data: Place, data_dir: str | None
) -> tuple[Sequence[str], Callable[[], ImageSet]]:
    (name, root), run, split = data, Path(model).expanduser(), "test"
    if root is None:
        images = frozen.images(dataset=name, data_dir=data_dir, val_fraction=0.0)
    elif is_run(run):
        subject = opened(run, None, [f"--data.root={root}"])
        images, split = subject.data, subject.split
    else:
        names = output_names(frozen, _folders_in(Path(root)))
        images = frozen.images(root=root).read_as(classes=names)
    return images.classes, partial(images.image_set, split)


def _folders_in(place: Path) -> list[str]:
    """The names of the folders in a folder; none of another place."""
    return [entry.name for entry in place.iterdir() if entry.is_dir()] if place.is_dir() else []


def _official(root: Path, frozen: Frozen) -> Source | None:
    """The official pictures in a folder, `KIND/1/CLASS/*.JPEG`, one level deeper too, or `KIND.npy`
    beside `labels.npy`; None if there are neither."""
    places = {kind: [root / kind, *root.glob(f"*/{kind}")] for kind in KINDS}
    folders = {k: p for k, several in places.items() for p in several if (p / "1").is_dir()}
    sets: dict[Version, Callable[[], ImageSet]] = {}
    if folders:
        names = output_names(frozen, _folders_in(next(iter(folders.values())) / "1"))
        for (kind, place), s in product(folders.items(), STRENGTHS):
            sets[kind, s] = partial(_images, frozen, names, place / str(s))
        return Source(names, sets, [*folders], "ImageNet-C", is_cropped=True)
    kinds = [kind for kind in KINDS if (root / f"{kind}.npy").is_file()]
    sets |= {(k, s): partial(_block, frozen, root, k, s) for k in kinds for s in STRENGTHS}
    return Source(output_names(frozen, ()), sets, kinds, "CIFAR-C") if kinds else None


def _images(frozen: Frozen, names: list[str], folder: Path) -> ImageSet:
    return frozen.images(root=str(folder)).read_as(classes=names).image_set("test")


def _block(frozen: Frozen, root: Path, kind: str, strength: int) -> ImageSet:
    """One of the five parts of a file; the labels number the outputs of the model."""
    try:
        pixels, labels = (
            np.load(root / name, mmap_mode="r", allow_pickle=False)
            for name in (f"{kind}.npy", "labels.npy")
        )
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {kind}.npy and labels.npy in {root}: {error}") from error
    count = len(pixels) // 5
    if pixels.shape != (5 * count, 32, 32, 3) or not 0 < count <= len(labels):
        raise UserError(
            f"{root / kind}.npy of shape {pixels.shape} with {len(labels):,} labels is not five "
            "strengths of labelled images of 32 x 32 pixels; download both again"
        )
    if labels.max() >= frozen.num_classes:
        raise UserError(f"labels.npy in {root} has classes that the model lacks")
    names = PathList(f"{kind}/{number}" for number in range(count))
    block = pixels[(strength - 1) * count : strength * count]
    return ImageSet(np.asarray(block), labels[:count].astype(np.int64), names)
