"""Images in tar shards as the splits of a data set.

A shard gives what a folder with the same paths gives, in the same order: train-00000.tar has
cat/1.jpg for train/cat/1.jpg. `classes.txt` beside the shards, a name per line, names labels that
are numbers.
"""

import os
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from io import FileIO
from unicodedata import normalize

import numpy as np

from vit.data.addresses import (
    by_split,
    cache_limit,
    in_cache,
    is_address,
    is_full,
    local_copy,
    reaching,
    retried,
)
from vit.data.decode import ImageError, NamedBytes
from vit.data.folder import Part, class_of
from vit.data.opened import Opened, distinct
from vit.data.options import Reading
from vit.data.shard_index import Index, load_indices
from vit.data.sources import SPLIT_NAMES, PathList, SplitName
from vit.errors import UserError

CLASSES, MIXED = "classes.txt", 8


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
        place = self.places[index]
        shard = self.shards[self.shard_of[place]]
        start, size = int(self.offsets[place]), int(self.sizes[place])
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


def _part(where: str, shards: list[str], names: list[str], above: str, reading: Reading) -> Part:
    """One split; UserError for a shard that cannot be read, or a label that is not in `names`."""
    indices = load_indices(shards)
    images = ShardImages(shards, indices)
    labels = [label for index in indices for label in index["label"].tolist()]
    # As in a folder: by folder, and then by name.
    paths = [b"\0".join(name.rpartition(b"/")[::2]) for name in images.names.encoded()]
    order = sorted(range(len(paths)), key=paths.__getitem__)
    places: dict[tuple[bytes, bytes], tuple[str, bytes]] = {}
    groups, keys = [], []
    for row in order:
        folder, _, name = paths[row].partition(b"\0")
        place = (folder, labels[row] if reading.has_classes else b"")
        if place not in places:
            label = _named(place[1].decode(), names, where)
            of_class, below = class_of(os.fsdecode(folder), reading, label)
            places[place] = of_class, os.fsencode(f"{below}/" if below else "")
        groups.append((places[place][0], 1))
        keys.append(places[place][1] + name)
    rows = np.array(order, dtype=np.int64)
    shown = PathList(os.fsencode(above) + name for name in images.names.select(rows).encoded())
    left_out = Counter(kind.decode() for index in indices for kind in index["left_out"].tolist())
    return Part(where, images.select(rows), shown, PathList(keys), groups, left_out, names)


def _named(label: str, names: list[str], where: str) -> str:
    """The class of a label, which may be its number; the label itself without `names`."""
    if not names or not label:
        return label
    if label.isdecimal() and int(label) < len(names):
        return names[int(label)]
    if label not in names:
        number = f"the {len(names):,} classes in {CLASSES}"
        raise UserError(f"{where} has the label {label!r}, which is none of {number}")
    return label


def shard_parts(
    root: str, reading: Reading, found: dict[str, list[str]]
) -> dict[SplitName, Callable[[], Part]]:
    """What reads each split in shards of `find_shards`."""
    names = _class_names(next(iter(found.values()))[0])
    parts: dict[SplitName, Callable[[], Part]] = {}
    for split, word in by_split(root, found).items():
        above, where = (f"{word}/", f"{word} of {root}") if word else ("", root)
        parts[split] = partial(_part, where, found[word], names, above, reading)
    return parts


def _class_names(shard: str) -> list[str]:
    """The names in the list beside a shard, or beside its split folder; none without a list."""
    folder = os.path.dirname(shard)
    if os.path.basename(folder).lower() in SPLIT_NAMES:
        folder = os.path.dirname(folder)
    with suppress(FileNotFoundError), reaching(f"{folder}/{CLASSES}") as (files, place):
        text = normalize("NFC", files.cat_file(place).decode("utf-8-sig"))
        return distinct([line.strip() for line in text.splitlines() if line.strip()])
    return []
