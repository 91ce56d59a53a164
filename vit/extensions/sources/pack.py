"""Pictures as tar shards in the layout of WebDataset, for object stores and disks that turn.

FOLDER/classes.txt                 the classes, a line each, in the order of their numbers
FOLDER/train-00000.tar             cat/1.jpg and cat/1.cls with its number, and so on
FOLDER/train-00000.tar.index.npz   what is where, written once the shard has been read back
FOLDER/pack.json                   of what; the same command goes on after an interruption

Each split is put in a random order, by blocks if it comes in blocks, and cut into shards of equal
numbers of images.
"""

import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vit.console import Meter, note
from vit.data.catalog import data_set
from vit.data.decode import NamedBytes, read
from vit.data.find import check_source, find_splits
from vit.data.photo import Photo
from vit.data.scan import EXTENSIONS
from vit.data.settings import Reading, Splitting
from vit.data.sources import SPLIT_NAMES, ImageSet, PathList, Splits
from vit.errors import UserError
from vit.extensions.serving.reading import range_loader
from vit.extensions.serving.sole_writer import sole_writer
from vit.extensions.sources.blocks import Blocks
from vit.extensions.sources.digests import images_digest
from vit.extensions.sources.opened import OpenedImages
from vit.extensions.sources.shards import (
    CLASSES,
    PLAN,
    SUFFIX,
    index_of,
    names_list,
    write_index,
)
from vit.writing import atomic, remove_orphans, write_bytes, write_json

MOST_IMAGES, MOST_BYTES = 10_000, 256 * 2**20
"""In a shard, about: the size of images is that of some."""
QUALITY = 95
"""Of a JPEG that has been resized."""
_LOSSLESS = (".png", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
_OUTSIDE = re.compile(r"^(\.{0,2}/)+")
"""Before a path that leads out of its folder."""


@dataclass
class Shard:
    """Some images of a split, named by their paths in the shard."""

    path: Path
    images: ImageSet
    index: Path


def pack(source: str, folder: Path, *, resize: int | None = None) -> list[Shard]:
    """Writes the shards that `folder` lacks, in worker processes, and returns all of them.

    Args:
        source: As `vit fit --data` takes it.
        resize: The most pixels of the shorter side; larger images are resized. The others, and all
            without this, are copied byte for byte.

    Raises UserError if `folder` holds something else, an image cannot be opened, or is read back
    otherwise than it was written.
    """
    name, root = data_set(source)
    dataset, whole = name if root is None else None, Splitting(val_fraction=0, test_fraction=0)
    check_source(dataset, root)
    splits = find_splits(dataset, root, Reading(cut=whole))
    for text in splits.notes:
        note(text)
    if splits.multilabel:
        raise UserError(f"{source} has several labels per image, and a shard one; keep the files")
    with sole_writer(folder / PLAN, str(folder)):
        return _pack(splits, folder, resize)


def _pack(splits: Splits, folder: Path, resize: int | None) -> list[Shard]:
    names = _begin(folder, splits, {"resize": resize})
    shards = list(_shards(splits, folder, resize))
    lacking = [shard for shard in shards if not (shard.path.exists() and shard.index.exists())]
    total = sum(len(shard.images) for shard in shards)
    with Meter("packing", total, "img") as meter:
        meter.begin(total - sum(len(shard.images) for shard in lacking), total)
        for count in range_loader(partial(_write_shard, lacking, resize), len(lacking), 1):
            meter.advance(count)
    write_bytes(folder / CLASSES, names)  # last: without it the shards are not read
    return shards


def _begin(folder: Path, splits: Splits, plan: dict[str, Any]) -> bytes:
    """Writes the plan, or compares it with that of an interrupted run; the list of the classes."""
    names = names_list(splits.classes)
    for name, images in splits.present().items():
        plan[name] = images.digest(splits.classes)
        if not isinstance(images.items, OpenedImages):  # all of Parquet would be read for it
            plan[name] += f" {images_digest(images)}"
    file = folder / PLAN
    try:
        before = json.loads(file.read_text()) if file.exists() else plan
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); give a new folder") from error
    if before != plan:
        more = "perhaps one was added, changed or deleted since; give a new folder"
        raise UserError(f"{folder} was begun with other images or another --resize: {more}")
    remove_orphans(folder)
    if not file.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a new folder")
    write_json(file, plan)
    return names


def _shards(splits: Splits, folder: Path, resize: int | None) -> Iterator[Shard]:
    """The images of each split in random order, cut into shards."""
    generator = torch.Generator().manual_seed(0)
    alone = splits.val is None and splits.test is None
    for split, images in splits.present().items():
        above = images.names.name(0).partition("/")[0]
        if SPLIT_NAMES.get(above.lower()) != split:
            above = ""
        below = (os.path.normpath(name.removeprefix(f"{above}/")) for name in images.names)
        named = replace(images, names=PathList(_OUTSIDE.sub("", name) for name in below))
        tried = np.unique(np.linspace(0, len(images) - 1, 64).astype(int)).tolist()
        size = np.mean([len(packed(named, index, resize)[1]) for index in tried])
        count = int(np.ceil(len(images) * max(1 / MOST_IMAGES, size / MOST_BYTES)))
        order = torch.randperm(len(images), generator=generator)
        if not isinstance(images.items, PathList | np.ndarray):
            order = Blocks(images)(generator)
        word = above or ("images" if alone else split)
        for number, part in enumerate(np.array_split(order.numpy(), count)):
            path = folder / f"{word}-{number:05d}.tar"
            yield Shard(path, named.select(part), Path(f"{path}{SUFFIX}"))


def packed(images: ImageSet, index: int, resize: int | None) -> tuple[str, bytes]:
    """Path of an image in its shard, and the content of its file. Raises ImageError."""
    name, item = images.names.name(index), images.items[index]
    if isinstance(item, np.ndarray):
        item = _encoded(Image.fromarray(item), "PNG")
    content = item if isinstance(item, bytes) else read(item, lambda stream, *_: stream.read())
    place = item if isinstance(item, str) else getattr(item, "name", name)
    photo = Photo(NamedBytes(content, place))
    stem, suffix = os.path.splitext(name)
    if suffix.lower() not in EXTENSIONS:  # a row of Parquet, or of an array
        kind = (Image.open(io.BytesIO(content)).format or "").lower()
        stem, suffix = name, f".{'jpg' if kind in ('jpeg', 'mpo') else kind}"
    if resize is not None and min(photo.height, photo.width) > resize:
        small, lossless = photo.cover((resize, resize), "bicubic"), suffix.lower() in _LOSSLESS
        content = _encoded(small, "PNG" if lossless else "JPEG")
        suffixes = (".png",) if lossless else (".jpg", ".jpeg", ".jpe", ".jfif")
        suffix = suffix if suffix.lower() in suffixes else suffixes[0]
    folder, last = os.path.split(stem)
    # WebDataset takes a name up to its first dot.
    return os.path.join(folder, last.replace(".", "_")) + suffix, content


def _encoded(image: Image.Image, kind: str) -> bytes:
    image.save(stream := io.BytesIO(), kind, quality=QUALITY)  # which PNG has not
    return stream.getvalue()


def _write_shard(shards: list[Shard], resize: int | None, at: range) -> int:
    """Writes a shard, reads it back, writes its index, and returns the number of its images."""
    shard = shards[at.start]
    with atomic(shard.path) as temporary:
        written = _write(shard.images, temporary, resize)
        index = index_of(str(shard.path), temporary)
        if index["digest"].tolist() != written:
            raise UserError(f"{shard.path} is read back otherwise; check the disk")
    write_index(index, shard.index)
    return len(written)


def _write(images: ImageSet, path: Path, resize: int | None) -> list[int]:
    """CRC-32 of each image."""
    written = []
    with tarfile.open(path, "w") as tar:
        for index in range(len(images)):
            name, content = packed(images, index, resize)
            label = str(images.labels[index]).encode()
            for place, part in ((name, content), (f"{os.path.splitext(name)[0]}.cls", label)):
                member = tarfile.TarInfo(place)
                member.size = len(part)
                tar.addfile(member, io.BytesIO(part))
            written.append(zlib.crc32(content))
    return written
