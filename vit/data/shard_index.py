"""What is where in a tar shard: one read of the whole shard, and a file with the result.

The layout is WebDataset's. Files of which the paths are equal up to the first dot of the name are
a sample: an image, and its label in .cls, a number or text. Without such files the label is the
folder: a tar of class folders is a shard as well.
"""

import os
import posixpath
import tarfile
import zlib
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from filelock import FileLock

from vit.console import Meter, say
from vit.data.addresses import fetch, in_cache, is_address, is_full, local_copy, reaching
from vit.data.loaders import range_loader
from vit.data.scan import LITTER, image_extensions
from vit.errors import UserError
from vit.writing import atomic

SUFFIX = ".index.npz"
Index = dict[str, np.ndarray]
"""Of n images, in the order of the shard: `name`, their paths, and `label`, empty where the folder
is the label, both bytes; `offset`, the first byte, and `size`, int64; `digest`, CRC-32, uint32.
`bytes`: the size of the shard. `left_out`: extensions of other files, or "hidden"."""


def load_indices(shards: list[str]) -> list[Index]:
    """The indices of all shards; those that are lacking are made first.

    UserError for a shard that cannot be read, or has another size than its index.
    """
    found = {shard: read_index(shard) for shard in shards}
    if lacking := [shard for shard in shards if found[shard] is None]:
        say(f"shards without an index here: {len(lacking):,}; each is copied, or made by one read")
        make_indices(lacking)
    indices = [found[shard] or read_index(shard) or index_of(shard) for shard in shards]
    for shard, index in zip(shards, indices, strict=True):
        if not is_address(shard) and not _is_current(shard, index):
            wrong = f"{shard} has not the {int(index['bytes']):,} bytes of its index"
            raise UserError(f"{wrong}; copy it again, or index it again: vit data index {shard}")
    return indices


def read_index(shard: str) -> Index | None:
    """The index beside a shard, or else in the cache; None if there is none that can be read, or
    the shard has been written since."""
    for path in (shard + SUFFIX, in_cache(shard + SUFFIX)):
        with suppress(OSError, ValueError, EOFError, BadZipFile):
            if is_address(shard) or os.stat(path).st_mtime_ns >= os.stat(shard).st_mtime_ns:
                with np.load(path, allow_pickle=False) as file:
                    return dict(file)
    return None


def _is_current(shard: str, index: Index | None) -> bool:
    """The index is of a shard of this size."""
    with suppress(FileNotFoundError), reaching(shard) as (files, place):
        return index is not None and files.size(place) in (None, int(index["bytes"]))
    return False


def make_indices(shards: list[str]) -> int:
    """Writes the indices that are lacking or of another size, in processes; returns how many.

    Of several processes one writes, and the others wait. UserError for a shard that cannot be used.
    """
    lock = in_cache(shards[0] + SUFFIX + ".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        left = [shard for shard in shards if not _is_current(shard, read_index(shard))]
        with Meter("indexing", len(left), "shards") as meter:
            for _ in range_loader(partial(_make_index, left), len(left), 1):
                meter.advance()
    return len(left)


def _make_index(shards: list[str], at: range) -> None:
    """Writes the index of a shard: beside it, or in the cache where that is not possible."""
    shard = shards[at.start]
    path = in_cache(shard + SUFFIX)
    if is_address(shard):
        in_cache(shard).unlink(missing_ok=True)  # it may be of another size
        with suppress(FileNotFoundError):
            fetch(shard + SUFFIX, path)
            if _is_current(shard, read_index(shard)):
                return
    elif os.access(os.path.dirname(shard), os.W_OK):
        path = Path(shard + SUFFIX)
    write_index(index_of(shard), path)


def write_index(index: Index, path: Path) -> None:
    """Writes the file of an index."""
    with atomic(path) as temporary:
        np.savez(temporary, allow_pickle=False, **index)


def index_of(shard: str, path: Path | None = None) -> Index:
    """The index of a shard, by one read of its copy at `path`, by default in the cache.

    UserError if it cannot be used, OSError for a full disk.
    """
    images: list[tuple[str, str, int, int, int]] = []  # key, name, offset, size, digest
    labels: dict[str, str] = {}
    left_out: list[str] = []
    try:
        path = path or local_copy(shard)
        with tarfile.open(path, "r:") as tar, path.open("rb") as file:
            for member in tar:
                name, key, kind = _parts(member.name)
                content: Any = tar.extractfile(member) if member.isreg() else None
                if content is None:
                    left_out += [] if member.isdir() else ["links"]
                elif f".{kind}" in image_extensions():
                    digest = zlib.crc32(content.read())
                    images.append((key, name, member.offset_data, member.size, digest))
                elif kind == "cls":
                    labels[key] = _label(content.read(), f"{shard}: {name}")
                else:
                    left_out.append(kind or "without extension")
            file.seek(tar.offset)
            end = file.read(2**20)
            if not end or end.strip(b"\0"):  # tarfile takes both, and damage, for the end
                raise tarfile.ReadError("it is cut short, or goes on behind its end")
        size = path.stat().st_size
    except (tarfile.TarError, OSError) as error:
        if is_full(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shard} cannot be read as a whole tar file: {reason}") from error
    keys, names, *numbers = map(list, zip(*images, strict=True)) if images else ([],) * 5
    counts = Counter(keys)
    for key in [*labels, *keys] if labels else []:
        if (count := counts[key]) != 1 or key not in labels:
            found = f"{'a' if key in labels else 'no'} label and {count} images"
            raise UserError(f"{shard}: sample {key} has {found}; it must have one of each")
    index = {
        "name": np.array([os.fsencode(name) for name in names], "S"),
        "label": np.array([labels.get(key, "").encode() for key in keys], "S"),
        "left_out": np.array(left_out, "S"),
        "bytes": np.array(size),
    }
    kinds = {"offset": np.int64, "size": np.int64, "digest": np.uint32}
    return index | {name: np.array(n, kinds[name]) for name, n in zip(kinds, numbers, strict=True)}


def _parts(member: str) -> tuple[str, str, str]:
    """Normal path of a member, key of its sample, and its last extension, or "hidden"."""
    name = posixpath.normpath(member)
    *folders, last = name.split("/")
    stem, _, extensions = last.partition(".")
    kind = extensions.rpartition(".")[2].lower()
    if any(part.startswith(".") or part in LITTER for part in (*folders, last)):
        kind = "hidden"
    return name, "/".join((*folders, stem)), kind


def _label(content: bytes, where: str) -> str:
    """The label in a file."""
    text = content.decode(errors="replace").strip()
    if not text or "\N{REPLACEMENT CHARACTER}" in text:
        raise UserError(f"{where} holds no label in UTF-8; pack it again")
    return str(int(text)) if text.isdecimal() else text
