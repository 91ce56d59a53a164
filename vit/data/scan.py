"""A walk over a tree of image files, without hidden entries."""

import os
from collections import Counter, deque
from collections.abc import Iterator

from vit.console import Meter
from vit.errors import UserError

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".heic", ".heif", ".hif", ".jxl"),
)
LITTER = frozenset({"__MACOSX"})
"""Folders in archives from macOS."""


def scan(top: str, *, arrays: bool = False) -> tuple[dict[str, list[str]], Counter[str]]:
    """The images in `top` and in all folders below it, and counts of other files.

    Sorted names by the path of the folder below `top` ("" for itself, "/" between parts), in order;
    counts by extension or "hidden"; `arrays`: .npy files are images. Symbolic links are followed,
    and each folder is listed once. Raises UserError for a folder that cannot be read.
    """
    extensions = {*EXTENSIONS, ".npy"} if arrays else {*EXTENSIONS}
    folders: dict[str, list[str]] = {}
    left_out: Counter[str] = Counter()
    waiting, seen = deque([("", os.path.realpath(top))]), set[str]()  # paths without links
    links: deque[tuple[str, str]] = deque()  # last: what they lead to is listed at its own place
    with Meter(f"scanning {top}", 0, "images") as meter:
        while waiting or links:
            path, real = (waiting or links).popleft()
            if real in seen:
                continue
            seen.add(real)
            images = folders[path] = []
            for entry in entries(real):
                suffix = os.path.splitext(entry.name)[1].lower()
                if entry.name.startswith("."):
                    left_out["hidden"] += not entry.is_dir()
                elif os.path.isdir(entry.path):
                    if entry.name not in LITTER:
                        below = f"{path}/{entry.name}" if path else entry.name
                        queue = links if entry.is_symlink() else waiting
                        queue.append((below, os.path.realpath(entry.path)))
                # A pipe or a device named .jpg would block its reader for ever.
                elif suffix in extensions and os.path.isfile(entry.path):
                    images.append(entry.name)
                else:
                    left_out[suffix or "without extension"] += 1
            images.sort()
            meter.advance(len(images))
    return dict(sorted(folders.items())), +left_out


def image_files(folder: str, *, arrays: bool = False) -> Iterator[str]:
    """Paths of the pictures in and below a folder, folder by folder. UserError without any."""
    folders, _ = scan(folder, arrays=arrays)
    if not any(folders.values()):
        raise UserError(f"no pictures in {folder}")
    for path, images in folders.items():
        yield from (os.path.join(folder, path, name) for name in images)


def similar_file(path: str, root: str) -> str:
    """'; did you mean 'a/b.jpg'?', or "": a file below `root` of that path but for letters' case,
    the extension, or a backslash between folders."""
    folder, name = os.path.split(path.replace("\\", "/"))
    place, stem = os.path.join(root, folder), os.path.splitext(name)[0].lower()
    names = [entry.name for entry in entries(place)] if os.path.isdir(place) else []
    alike = [each for each in names if os.path.splitext(each)[0].lower() == stem]
    return f"; did you mean {os.path.join(folder, alike[0])!r}?" if alike else ""


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Entries of a folder, sorted by name; UserError if it cannot be read."""
    try:
        with os.scandir(folder) as scanned:
            return sorted(scanned, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read folder {folder}: {error.strerror}") from error


def left_out_note(where: str, counts: Counter[str]) -> list[str]:
    """A line with the counts of files that are left out, if there are any."""
    if not counts:
        return []
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    hint = " (--data.channels N reads .npy files)" if ".npy" in counts else ""
    return [f"{where}: left out: {listed}{hint}"]
