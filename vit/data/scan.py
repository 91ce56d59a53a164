"""A walk over a tree of image files, without hidden entries."""

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from vit.console import Meter
from vit.errors import UserError

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
)
LITTER = frozenset({"__MACOSX"})
"""Folders in archives from macOS."""


@cache
def image_extensions(arrays: bool = False) -> frozenset[str]:
    """Lower-case extensions of images; .avif if Pillow opens it, .npy with `arrays`."""
    from PIL import features

    more = {".avif"} if features.check("avif") else set()
    return frozenset(EXTENSIONS) | more | ({".npy"} if arrays else set())


@dataclass
class Folder:
    """One folder of a tree."""

    path: str
    """Below the top, "" for the top itself, "/" between parts."""
    images: list[str] = field(default_factory=list)
    """Their names, sorted."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Counts of other files, by extension or "hidden"."""
    label: str = ""
    """The class of its images in shards, where that is not a folder."""
    rows: list[int] = field(default_factory=list)
    """Places of its images among those of shards."""


def scan(top: str, *, arrays: bool = False) -> list[Folder]:
    """`top` and all folders below it, sorted by path; `arrays` as in `image_extensions`.

    Symbolic links are followed, and each folder is listed once. Raises UserError for a folder that
    cannot be read.
    """
    extensions = image_extensions(arrays)
    folders: dict[str, Folder] = {}  # by path without links
    waiting = deque([("", os.path.realpath(top))])
    with Meter(f"scanning {top}", 0, "images") as meter:
        while waiting:
            path, real = waiting.popleft()
            if real in folders:
                continue
            folder = folders[real] = Folder(path)
            # Links last: what they lead to is listed at its own place.
            for entry in sorted(entries(real), key=os.DirEntry.is_symlink):
                suffix = os.path.splitext(entry.name)[1].lower()
                if entry.name.startswith("."):
                    folder.left_out["hidden"] += not entry.is_dir()
                elif os.path.isdir(entry.path):
                    if entry.name not in LITTER:
                        below = f"{path}/{entry.name}" if path else entry.name
                        waiting.append((below, os.path.realpath(entry.path)))
                # A pipe or a device named .jpg would block its reader for ever.
                elif suffix in extensions and os.path.isfile(entry.path):
                    folder.images.append(entry.name)
                else:
                    folder.left_out[suffix or "without extension"] += 1
            folder.images.sort()
            meter.advance(len(folder.images))
    return sorted(folders.values(), key=lambda folder: folder.path)


def image_files(folder: str, *, arrays: bool = False) -> Iterator[str]:
    """Paths of the pictures in and below a folder, folder by folder. UserError without any."""
    folders = scan(folder, arrays=arrays)
    if not any(found.images for found in folders):
        raise UserError(f"no pictures in {folder}")
    for found in folders:
        yield from (os.path.join(folder, found.path, name) for name in found.images)


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Entries of a folder, sorted by name; UserError if it cannot be read."""
    try:
        with os.scandir(folder) as scanned:
            return sorted(scanned, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read folder {folder}: {error.strerror}") from error


def left_out_note(where: str, folders: Iterable[Folder]) -> list[str]:
    """At most one line, with the counts of files that are left out."""
    counts = sum((folder.left_out for folder in folders), Counter[str]())
    if not counts:
        return []
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    hint = " (--data.channels N reads .npy files)" if ".npy" in counts else ""
    return [f"{where}: left out: {listed}{hint}"]
