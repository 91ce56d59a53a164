"""Shards by their names: quoted patterns, folders of .tar files, and addresses on the network.

Addresses (s3://, gs://, https://, hf://) are read by fsspec; copies of whole shards stay in the
cache.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOENT, ENOSPC
from glob import glob
from hashlib import blake2b
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import fsspec.config
from filelock import FileLock

from vit.console import note
from vit.data.find import check_source
from vit.data.scan import EXTENSIONS, entries
from vit.data.sources import SPLIT_WORDS, SplitName, by_split
from vit.errors import UserError, shorten, some_of
from vit.writing import atomic, cache_directory, write_text

SUFFIX, PARQUET = _SUFFIXES = ".tar", ".parquet"
_SPLIT = re.compile(
    rf"(?:^|[/_-])({'|'.join(SPLIT_WORDS)})(?:/[^/]*|-[^/-]*|_?\d+)?(?:-of-[\w-]+)?\.\w+$", re.I
)
"""The word in train-00012.tar, imagenet1k-validation-07.tar, val_3.tar, test.tar or train/1.tar."""
_GRACE = 60
"""Seconds in which a copy is not deleted, as another process may be about to open it."""
_PAUSES = (1, 5)
"""Seconds before a second and a third try."""
_SILENCE = 30
"""Seconds in which an http server sends nothing, after which a try is over."""
_TAGS = ("md5Hash", "Content-MD5", "ETag", "etag", "blob_id")
"""What gcsfs, an http server, s3fs, others and the hub call it; the first that is there counts."""
_KEPT: set[Any] = set()
"""File systems of this process and of those that it was forked from. Deleting one closes its
connections, and a child that does so takes them out of its parent's epoll: the parent would never
hear of an answer (fsspec clears its own list in each child)."""
Content = TypeVar("Content")


def is_address(place: str) -> bool:
    return "://" in place


def check_address(root: str) -> None:
    """UserError if no installed package reads an address."""
    try:
        fsspec.get_filesystem_class(root.partition("://")[0])
    except (ImportError, ValueError) as error:  # it names the package
        raise UserError(f"data.root={root} cannot be read: {error}") from error


def listed_shards(root: str) -> list[str]:
    """The tar shards of all splits; UserError if there are none."""
    check_source(None, root)
    shards = [shard for split in find_shards(root).values() for shard in split]
    if not is_tar(shards):
        raise UserError(f"{root} has no shards; give 'DIR/train-{{000..127}}.tar' or a folder")
    return shards


def expanded(pattern: str) -> list[str]:
    """The names that a shell makes of braces: a{08..10} is a08, a09, a10, and {a,b} is a, b."""
    braces = re.search(r"\{([^{}]*)\}", pattern)  # the innermost
    if braces is None:
        return [pattern]
    words = braces[1].split(",")
    if ends := re.fullmatch(r"(\d+)\.\.(\d+)", braces[1]):
        words = [f"{n:0{len(ends[1])}}" for n in range(int(ends[1]), int(ends[2]) + 1)]
    names = (pattern[: braces.start()] + word + pattern[braces.end() :] for word in words)
    return list(dict.fromkeys(name for each in names for name in expanded(each)))


def is_tar(shards: Sequence[str]) -> bool:
    """True for tar shards, False for none and for files of Parquet."""
    return bool(shards) and shards[0].endswith(SUFFIX)


def find_shards(root: str) -> dict[str, list[str]]:
    """Shards by the word for their split, as files or folders below `root` are named, or "".

    They are .tar files or, where there are none, .parquet files. Nothing is found in a file or
    folder of another kind. UserError for a pattern without one of its shards.
    """
    if is_address(root):
        files = [shard for name in expanded(root) for shard in _on_network(name)]
    else:
        root = os.path.abspath(os.path.expanduser(root))
        files = _in_folder(root) if os.path.isdir(root) else _local(root)
    files = [name for name in files if name.endswith(SUFFIX)] or files
    fixed = root if os.path.isdir(root) else re.split(r"[{*?\[]", root)[0].rpartition("/")[0]
    splits: dict[str, list[str]] = {}
    for shard in files:
        word = _SPLIT.search(shard.removeprefix(fixed).replace(os.sep, "/"))
        splits.setdefault(word[1] if word else "", []).append(shard)
    return splits


def words_by_split(root: str, shards: dict[str, list[str]]) -> dict[SplitName, str]:
    """The word of each split in `find_shards`; a note on shards of no split beside others."""
    words = sorted(filter(None, shards)) or list(shards)
    splits = by_split(root, words)
    if len(words) < len(shards):
        note(f"{root}: shards of no split left out: {some_of(map(os.path.basename, shards['']))}")
    return splits


def _in_folder(folder: str) -> list[str]:
    """The shards in a folder, or in its split folders; none beside pictures or class folders."""
    inside = [entry for entry in entries(folder) if not entry.name.startswith(".")]
    folders = [entry for entry in inside if entry.is_dir()]
    if not folders:
        pictures = any(entry.name.lower().endswith(EXTENSIONS) for entry in inside)
        return [] if pictures else [e.path for e in inside if e.name.endswith(_SUFFIXES)]
    if not all(entry.name.lower() in (*SPLIT_WORDS, "data") for entry in folders):
        return []
    return [shard for entry in folders for shard in _in_folder(entry.path)]


def _local(pattern: str) -> list[str]:
    names = [pattern] if os.path.exists(pattern) else expanded(pattern)
    matches = {name: [name] if os.path.exists(name) else sorted(glob(name)) for name in names}
    shards = [file for files in matches.values() for file in files if file.endswith(_SUFFIXES)]
    missing = [name for name, files in matches.items() if not files]
    if shards and missing:
        count = f"{len(missing):,} of {len(names):,} shards"
        raise UserError(f"data.root={pattern}: {count} are missing, such as {missing[0]}")
    return shards


def _on_network(address: str) -> list[str]:
    if address.endswith(_SUFFIXES) and "*" not in address:
        return [address]
    with reaching(address) as (files, place):
        below = [""] if "*" in address else ["/*", "/*/*"]
        matches = [name for end in below for name in sorted(files.glob(place.rstrip("/") + end))]
    return [files.unstrip_protocol(name) for name in matches if name.endswith(_SUFFIXES)]


@contextmanager
def reaching(address: str) -> Iterator[tuple[Any, str]]:
    """fsspec's file system of an address, and the path there; it is one of this process.

    FileNotFoundError if it is not there or not allowed, which some stores do not tell apart;
    UserError if it cannot be read; OSError for a full disk.
    """
    try:
        files, place = fsspec.url_to_fs(address, **_options(address))
        _KEPT.add(files)
        yield files, place
    except UserError:
        raise
    except Exception as error:  # each package has exceptions of its own
        if is_full(error):
            raise
        forbidden = getattr(error, "status", None) == HTTPStatus.FORBIDDEN
        if forbidden or isinstance(error, FileNotFoundError | PermissionError):
            raise FileNotFoundError(ENOENT, "not found, or not allowed", address) from error
        reason = shorten(" ".join(str(error).split()) or type(error).__name__, 200)
        raise UserError(f"{address} cannot be read: {reason}") from error


def _options(address: str) -> dict[str, Any]:
    """Options of fsspec: aiohttp ends a request after five minutes, but a shard may take longer."""
    if not address.startswith("http"):
        return {}
    from aiohttp import ClientTimeout

    client = {"timeout": ClientTimeout(sock_connect=_SILENCE, sock_read=_SILENCE)}
    return {"client_kwargs": client | fsspec.config.conf.get("http", {}).get("client_kwargs", {})}


def is_full(error: BaseException) -> bool:
    """The error of a disk on which nothing more can be written."""
    return getattr(error, "errno", None) in (ENOSPC, EDQUOT, EFBIG)


def retried(address: str, read: Callable[[Any, str], Content]) -> Content:
    """Result of `read(file system, path there)`; an error is tried again."""
    for pause in _PAUSES:
        with suppress(UserError), reaching(address) as (files, place):
            return read(files, place)
        time.sleep(pause)
    with reaching(address) as (files, place):
        return read(files, place)


def cache_limit() -> int:
    """Bytes of shards that the cache may hold: VIT_SHARD_CACHE in GiB, or 100 GiB."""
    size = os.environ.get("VIT_SHARD_CACHE") or "100"
    try:
        return int(float(size) * 2**30)
    except (ValueError, OverflowError) as error:
        raise UserError(f"VIT_SHARD_CACHE={size} is no number of GiB") from error


def in_cache(address: str) -> Path:
    """Place of a file's copy in the cache."""
    digest = blake2b(os.fsencode(address), digest_size=8).hexdigest()
    return cache_directory() / "shards" / f"{digest}-{os.path.basename(address)}"


def local_copy(shard: str) -> Path:
    """The path of a shard; a remote one is copied into the cache, where old copies make room.

    Of several processes one copies. FileNotFoundError if the shard does not exist.
    """
    if not is_address(shard):
        return Path(shard)
    copy = in_cache(shard)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{copy}.lock"):
        if not copy.exists():
            fetch(shard, copy)
            _make_room(copy)
        os.utime(copy)
    return copy


def state_of(place: str) -> tuple[int | None, str | None]:
    """Bytes of a file, and time of its last change in ns; of an address checksum or ETag. None for
    what its server does not say. FileNotFoundError if it does not exist."""
    if not is_address(place):
        status = os.stat(place)
        return status.st_size, str(status.st_mtime_ns)
    facts = retried(place, lambda files, path: files.info(path))
    return facts.get("size"), next((str(facts[n]) for n in _TAGS if facts.get(n)), None)


def drop_old_copies(files: list[str]) -> None:
    """Deletes the copies in the cache of those that have another state by now."""
    for address in filter(is_address, files):
        mark, state = in_cache(f"{address}.state"), str(state_of(address))
        if not mark.is_file() or mark.read_text("utf-8") != state:
            in_cache(address).unlink(missing_ok=True)
            mark.parent.mkdir(parents=True, exist_ok=True)
            write_text(mark, state)


def fetch(address: str, path: Path) -> None:
    """Copies a remote file; it appears whole. Errors are those of `reaching`."""
    with atomic(path) as temporary:
        retried(address, lambda files, place: files.get_file(place, str(temporary)))


def _make_room(newest: Path) -> None:
    """Deletes the copies that were opened longest ago, until the others fit into the cache."""
    with FileLock(newest.parent / ".room.lock"):
        copies: dict[str, os.stat_result] = {}
        for entry in os.scandir(newest.parent):
            # Also what a killed process has left; that of a living one may be renamed meanwhile.
            with suppress(FileNotFoundError):
                if entry.name.endswith(_SUFFIXES):
                    copies[entry.path] = entry.stat()
        surplus = sum(status.st_size for status in copies.values()) - cache_limit()
        for name in sorted(copies, key=lambda name: copies[name].st_mtime):
            unused = time.time() - copies[name].st_mtime > _GRACE and name != str(newest)
            if surplus > 0 and unused:
                os.unlink(name)
                surplus -= copies[name].st_size
