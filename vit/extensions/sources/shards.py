"""Images in tar shards as the splits of a data set.

The layout is WebDataset's. Files of which the paths are equal up to the first dot of the name are
a sample: an image, and its label in .cls, a number or text. Without such files the label is the
folder: a shard gives what a folder with the same paths gives, in the same order, and
train-00000.tar has cat/1.jpg for train/cat/1.jpg. `classes.txt` beside the shards, a name per line,
names labels that are numbers. The index of a shard, what is where in it, is made by one read.
"""

import os
import posixpath
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from io import BytesIO, FileIO
from pathlib import Path
from threading import Lock
from typing import Any
from unicodedata import normalize
from zipfile import BadZipFile

import numpy as np
from filelock import FileLock

from vit.console import Meter, say
from vit.data.decode import ImageError, NamedBytes
from vit.data.items import Kind, Opened
from vit.data.scan import EXTENSIONS, LITTER
from vit.data.sources import PathList
from vit.errors import UserError
from vit.extensions.serving.reading import range_loader
from vit.extensions.sources.addresses import (
    cache_limit,
    fetch,
    in_cache,
    is_address,
    is_full,
    local_copy,
    retried,
    state_of,
)
from vit.extensions.sources.opened import distinct
from vit.writing import atomic

CLASSES, PLAN, MIXED = "classes.txt", "pack.json", 8
SUFFIX = ".index.npz"
COLUMNS = {"name": "S", "label": "S", "offset": "i", "size": "i", "digest": "u"}
"""Arrays of an index with a row for each image, and NumPy's kind of each."""
Index = dict[str, np.ndarray]
"""Of n images, in the order of the shard: `name`, their paths, and `label`, empty where the folder
is the label, both bytes; `offset`, the first byte, and `size`, int64; `digest`, CRC-32, uint32.
`bytes` and `state`: size of the shard, and what else `state_of` says of it, "" for None.
`left_out`: extensions of other files, or "hidden"."""
_PARSING = Lock()
"""NumPy parses headers by `ast`, whose depth early releases of CPython 3.11 and 3.12 count for all
threads at once: two that parse may end in SystemError (python/cpython issue 106905)."""
_UNREADABLE = (OSError, ValueError, EOFError, BadZipFile, KeyError)


class ShardImages(Opened):
    """Images in shards; `images[i]` is the bytes of a file, with its name for messages.

    Attributes:
        shards: Paths or addresses.
        shard_of: int32, the shard of each of their images.
        offsets, sizes, digests: The place of each in its shard, and its CRC-32.
        names: Paths of all in their shards.
        whole: Remote shards are copied to the cache before an image is read, and not read by
            ranges; by default if all of them fit. Right where images are read shard by shard.
    """

    def __init__(self, shards: list[str], indices: list[Index]) -> None:
        counts = [len(index["name"]) for index in indices]
        self.shards = shards
        self.shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), counts)
        self.offsets, self.sizes, self.digests = (
            np.concatenate([index[name] for index in indices])
            for name in ("offset", "size", "digest")
        )
        self.places = np.arange(len(self.shard_of))
        self.names = PathList(name for index in indices for name in index["name"].tolist())
        self.whole = sum(int(index["bytes"]) for index in indices) <= cache_limit()
        _opened.cache_clear()  # a shard may have been rewritten

    def __getitem__(self, index: int) -> NamedBytes:
        """The bytes of a file. ImageError if they are not those of the index."""
        place, (shard, start, size) = self.places[index], self._place(index)
        name = f"{shard}: {self.names.name(place)}"
        try:
            if is_address(shard) and not self.whole and not in_cache(shard).exists():
                data = retried(shard, lambda files, path: files.cat_file(path, start, start + size))
                if len(data) > size:
                    more = "let VIT_SHARD_CACHE hold all shards"
                    raise UserError(f"{shard}: its server does not answer in parts; {more}")
            else:
                file = _opened(shard, os.getpid())
                file.seek(start)
                data = file.read(size)
        except OSError as error:
            if is_full(error):
                raise
            raise ImageError(f"{name}: cannot be read ({error.strerror or error})") from error
        if zlib.crc32(data) != self.digests[place]:
            copies = f"delete {in_cache(shard).parent}/*-{os.path.basename(shard)}*"
            again = copies if is_address(shard) else "copy it again"
            raise ImageError(f"{name}: damaged, or changed since it was indexed; {again}")
        return NamedBytes(data, name)

    def known_by(self) -> list[Kind]:
        return ["content", "path"] if self.whole else ["path"]  # of shards that are not copied here

    def size_of(self, index: int) -> int:
        return int(self.sizes[self.places[index]])

    def pieces(
        self, index: int, cut: Callable[[int], list[tuple[int, int]]]
    ) -> tuple[int, list[bytes]]:
        shard, start, size = self._place(index)
        file = _opened(shard, os.getpid()).fileno()
        return size, [os.pread(file, n, start + first) for first, n in cut(size)]

    def _place(self, index: int) -> tuple[str, int, int]:
        """Shard, first byte and bytes of an image."""
        at = self.places[index]
        return self.shards[self.shard_of[at]], int(self.offsets[at]), int(self.sizes[at])

    def in_blocks(self) -> tuple[np.ndarray, int]:
        """The shard of each image, and how many shards are mixed at a time. Remote ones are copied
        whole from now on."""
        self.whole = True
        return self.shard_of[self.places], MIXED

    def contents_digest(self) -> str:
        """BLAKE2b over names and contents, 32 hexadecimal digits."""
        names = self.names.select(self.places).digest().encode()
        digests = self.digests[self.places].tobytes()
        return blake2b(names + digests, digest_size=16).hexdigest()


@lru_cache(maxsize=64)  # many systems allow a process 1,024 files
def _opened(shard: str, process: int) -> FileIO:
    """The file of one process, as forked processes share the position of those they inherit."""
    return FileIO(local_copy(shard))


def listed_names(content: bytes) -> list[str]:
    """The names in a list of classes, one per line, without blanks around them."""
    text = normalize("NFC", content.decode("utf-8-sig"))
    return distinct([line.strip() for line in text.splitlines() if line.strip()])


def names_list(names: list[str]) -> bytes:
    """The content of a list of classes. UserError for a name that would be read otherwise."""
    lines = [f"{name}\n".encode("utf-8", "backslashreplace") for name in names]
    for name, line in zip(names, lines, strict=True):
        if listed_names(line) != [name]:
            raise UserError(f"class {name!r} cannot be a line of {CLASSES}; rename it")
    return b"".join(lines)


def load_indices(shards: list[str]) -> list[Index]:
    """The indices of all shards; those that are lacking are made first.

    UserError for a shard that cannot be read.
    """
    indices = dict(zip(shards, read_indices(shards), strict=True))
    if lacking := [shard for shard in shards if indices[shard] is None]:
        say(f"shards without an index here: {len(lacking):,}; each is copied, or made by one read")
        make_indices(lacking)
    return [indices[shard] or read_index(shard) or index_of(shard) for shard in shards]


def read_indices(shards: list[str]) -> list[Index | None]:
    """Results of `read_index` for each; a server is asked for several at a time."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(read_index, shards))


def read_index(shard: str) -> Index | None:
    """The index beside a shard, or else in the cache; None without one that is of this shard."""
    with suppress(FileNotFoundError):
        size, state = state_of(shard)
        for path in (shard + SUFFIX, in_cache(shard + SUFFIX)):
            with suppress(*_UNREADABLE):
                index = _loaded(path)
                same = state in (None, str(index["state"]))
                if same and size in (None, int(index["bytes"])):
                    return index
    return None


def _loaded(path: str | Path) -> Index:
    content = BytesIO(Path(path).read_bytes())
    with _PARSING, np.load(content, allow_pickle=False) as file:
        index = dict(file)
    kinds = [index[name].dtype.kind for name in COLUMNS]
    if kinds != [*COLUMNS.values()] or len({index[name].shape for name in COLUMNS}) != 1:
        raise ValueError(f"{path} is no index of a shard")
    return index


def make_indices(shards: list[str]) -> int:
    """Writes the indices that are lacking or of another shard, in processes; returns how many.

    Of several processes one writes, and the others wait. UserError for a shard that cannot be used.
    """
    lock = in_cache(shards[0] + SUFFIX + ".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        pairs = zip(shards, read_indices(shards), strict=True)
        left = [shard for shard, index in pairs if index is None]
        with Meter("indexing", len(left), "shards") as meter:
            for _ in range_loader(partial(_make_index, left), len(left), 1):
                meter.advance()
    return len(left)


def _make_index(shards: list[str], at: range) -> None:
    """Writes the index of a shard: beside it, or in the cache where that is not possible."""
    shard = shards[at.start]
    path = in_cache(shard + SUFFIX)
    if is_address(shard):
        in_cache(shard).unlink(missing_ok=True)  # it may be another one
        with suppress(*_UNREADABLE):
            size, state = state_of(shard)
            fetch(shard + SUFFIX, path)
            index = {**_loaded(path), "state": np.array(state or "")}
            if size in (None, int(index["bytes"])):
                return write_index(index, path)
    elif os.access(os.path.dirname(shard), os.W_OK):
        path = Path(shard + SUFFIX)
    write_index(index_of(shard), path)


def write_index(index: Index, path: Path) -> None:
    """Writes the file of an index."""
    with atomic(path) as temporary:
        np.savez(temporary, allow_pickle=False, **index)


_NUMBERS = {"offset": np.int64, "size": np.int64, "digest": np.uint32}
"""Columns of an index that are numbers."""


def index_of(shard: str, path: Path | None = None) -> Index:
    """The index of a shard, by one read of its copy at `path`, by default in the cache.

    UserError if it cannot be used, OSError for a full disk.
    """
    images: list[tuple[str, str, int, int, int]] = []  # key, name, offset, size, digest
    labels, left_out = dict[str, str](), list[str]()
    try:
        _, state = state_of(str(path or shard))
        path = path or local_copy(shard)
        size = path.stat().st_size
        with tarfile.open(path, "r:") as tar, path.open("rb") as file:
            for member in tar:
                name, key, kind = _parts(member.name)
                content: Any = tar.extractfile(member) if member.isreg() else None
                if content is None:
                    left_out += [] if member.isdir() else ["links"]
                elif f".{kind}" in EXTENSIONS:
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
    except (tarfile.TarError, OSError) as error:
        if is_full(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shard} cannot be read as a whole tar file: {reason}") from error
    keys, names, *numbers = map(list, zip(*images, strict=True)) if images else ([],) * 5
    _check_samples(shard, keys, names, labels)
    index = {
        "name": np.array([os.fsencode(name) for name in names], "S"),
        "label": np.array([labels.get(key, "").encode() for key in keys], "S"),
        "left_out": np.array(left_out, "S"),
        "bytes": np.array(size),
        "state": np.array(state or ""),
    }
    pairs = zip(_NUMBERS.items(), numbers, strict=True)
    return index | {name: np.array(values, kind) for (name, kind), values in pairs}


def _check_samples(shard: str, keys: list[str], names: list[str], labels: dict[str, str]) -> None:
    """UserError for an image without its label, the other way round, and for a name twice."""
    counts = Counter(keys)
    for key in [*labels, *keys] if labels else []:
        if (count := counts[key]) != 1 or key not in labels:
            problem = f"{'a' if key in labels else 'no'} label and {count} images"
            raise UserError(f"{shard}: sample {key} has {problem}; it must have one of each")
    if again := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{shard}: {again[0]} is in it twice; pack it again")


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
