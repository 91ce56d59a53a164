"""The pictures that a model is tested on: official ones, or images that they are generated from.

ImageNet-C is read from its folders, CIFAR-10-C and CIFAR-100-C from their files.
"""

from pathlib import Path

import numpy as np

from vit.data.sources import ImageSet, PathList
from vit.errors import UserError
from vit.extensions.evaluation.corruptions import KINDS, STRENGTHS
from vit.extensions.evaluation.frozen import Frozen
from vit.extensions.evaluation.robustness import Pictures, output_names
from vit.runs.evaluate import Subject
from vit.runs.lineage import note_seen
from vit.runs.records import is_run


def find_pictures(
    frozen: Frozen, model: str, name: str, root: str | None, data_dir: str | None
) -> tuple[str, dict[str | None, list[Pictures]]]:
    """Name and sets of a Source: the official pictures in the folder `root`, or the images in it,
    or of a set of the catalog, from which pictures are generated.

    Of a folder these are test/, or val/, or all; of the folder that a run was trained on, those
    that it held out. Labels are matched by the names of the classes, those of CIFAR by number.

    Raises UserError for what is not there, for classes that the model lacks, and for official sets
    of several sizes.
    """
    if root is None:
        data = frozen.images(dataset=name, data_dir=data_dir)
        images = Pictures(data.image_set("test"), data.classes)
        note_seen(model, images.images, "tested")
    elif official := _image_folders(frozen, Path(root)):
        return "ImageNet-C", _alike(official)
    elif official := _files(frozen, Path(root)):
        return "CIFAR-C", _alike(official)
    elif is_run(run := Path(model).expanduser()):
        subject = Subject(run, None, [f"--data.root={root}"])
        images = Pictures(subject.data.image_set(subject.split), subject.data.classes)
    else:
        images = _folder(frozen, root)
        note_seen(model, images.images, "tested")
    return "generated", {None: [images], **dict.fromkeys(KINDS, [images] * len(STRENGTHS))}


def _alike(sets: dict[str | None, list[Pictures]]) -> dict[str | None, list[Pictures]]:
    """UserError if one has another number of images, as where files are missing."""
    counts = {
        f"{kind} {strength}": len(pictures.images)
        for kind, several in sets.items()
        for strength, pictures in enumerate(several, start=1)
    }
    least, most = min(counts, key=lambda name: counts[name]), max(counts.values())
    if counts[least] != most:
        raise UserError(f"{least} has {counts[least]:,} images, others have {most:,}")
    return sets


def _image_folders(frozen: Frozen, root: Path) -> dict[str | None, list[Pictures]]:
    """`KIND/1/CLASS/*.JPEG`, or one level deeper."""
    places = [(kind, place) for kind in KINDS for place in (root / kind, *root.glob(f"*/{kind}"))]
    return {
        kind: [_folder(frozen, str(place / str(strength))) for strength in STRENGTHS]
        for kind, place in places
        if place.is_dir()
    }


def _folder(frozen: Frozen, root: str) -> Pictures:
    """Images of a folder or file, labelled by the outputs of the model."""
    place = Path(root)
    inside = [each.name for each in place.iterdir() if each.is_dir()] if place.is_dir() else []
    data = frozen.images(root=root).read_as(classes=output_names(frozen, inside))
    return Pictures(data.image_set(data.splits.scored), data.classes)


def _files(frozen: Frozen, root: Path) -> dict[str | None, list[Pictures]]:
    """`KIND.npy` with five parts, beside `labels.npy`."""
    sets = {}
    for kind in KINDS:
        if not (root / f"{kind}.npy").is_file():
            continue
        try:
            pixels, labels = (
                np.load(root / name, mmap_mode="r", allow_pickle=False)
                for name in (f"{kind}.npy", "labels.npy")
            )
            pixels = pixels.reshape(5, -1, 32, 32, 3)
            labels = labels.reshape(pixels.shape[:2]).astype(np.int64)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {kind}.npy and labels.npy in {root}: {error}") from error
        names = output_names(frozen, ())
        if (least := labels.min()) < 0 or labels.max() + 1 != len(names):
            raise UserError(
                f"labels.npy in {root} has labels from {least} to {labels.max()}, and the model "
                f"{len(names)} classes"
            )
        paths = PathList(f"{kind}/{number}" for number in range(pixels.shape[1]))
        both = zip(pixels, labels, strict=True)
        sets[kind] = [Pictures(ImageSet(np.asarray(p), of, paths), names) for p, of in both]
    return sets
