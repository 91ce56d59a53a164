"""A walk over a tree of image files, without hidden entries.

Symbolic links are followed after all real entries, so that each folder and each file is listed
once; a link to a folder above the tree is not followed.
"""

import os
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property

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
    names: set[str] = field(default_factory=set)
    """Of its images."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Counts of other files by extension, "hidden", or kind of link."""

    @cached_property
    def images(self) -> list[str]:
        """The names, sorted."""
        return sorted(self.names)


def scan(top: str, *, arrays: bool = False) -> list[Folder]:
    """`top` and all folders below it, sorted by path; `arrays` as in `image_extensions`.

    Raises UserError for a folder that cannot be read.
    """
    with Meter(f"scanning {top}", 0, "images") as meter:
        return _Walk(os.path.realpath(top), image_extensions(arrays), meter).run()


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Entries of a folder, sorted by name; UserError if it cannot be read."""
    try:
        with os.scandir(folder) as scanned:
            return sorted(scanned, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read folder {folder}: {error.strerror}") from error


class _Walk:
    def __init__(self, top: str, extensions: frozenset[str], meter: Meter) -> None:
        self.top, self.extensions, self.meter = top, extensions, meter
        self.folders: dict[str, Folder] = {}
        """By path without symbolic links."""
        self.linked_files: set[str] = set()
        self.queue: deque[tuple[str, str, Folder]] = deque([("", top, Folder(""))])
        """Path below the top, path without links, and the folder above."""
        self.links: deque[tuple[str, str, Folder]] = deque()

    def run(self) -> list[Folder]:
        while self.queue or self.links:
            if self.queue:
                self._list(*self.queue.popleft())
            else:
                self._follow(*self.links.popleft())
        return sorted(self.folders.values(), key=lambda folder: folder.path)

    def _list(self, path: str, real: str, above: Folder) -> None:
        if real in self.folders:
            above.left_out["repeated link"] += 1
            return
        folder = self.folders[real] = Folder(path)
        for entry in entries(real):
            name = entry.name
            if name.startswith("."):
                folder.left_out["hidden"] += not entry.is_dir(follow_symlinks=False)
            elif entry.is_symlink():
                self.links.append((_join(path, name), entry.path, folder))
            elif entry.is_dir(follow_symlinks=False):
                if name not in LITTER:
                    self.queue.append((_join(path, name), entry.path, folder))
            # A pipe or a device named .jpg would block its reader for ever.
            elif self._is_image(name) and entry.is_file(follow_symlinks=False):
                folder.names.add(name)
            else:
                folder.left_out[os.path.splitext(name)[1].lower() or "without extension"] += 1
        self.meter.advance(len(folder.names))

    def _is_image(self, name: str) -> bool:
        return os.path.splitext(name)[1].lower() in self.extensions

    def _follow(self, path: str, link: str, folder: Folder) -> None:
        real = os.path.realpath(link)
        if os.path.isdir(real):
            if os.path.commonpath((real, self.top)) == real:
                folder.left_out["repeated link"] += 1
            else:
                self.queue.append((path, real, folder))
        elif not os.path.isfile(real):
            folder.left_out["broken link"] += 1
        elif not self._is_image(path):
            folder.left_out[os.path.splitext(path)[1].lower() or "without extension"] += 1
        elif real in self.linked_files or self._has(*os.path.split(real)):
            folder.left_out["repeated link"] += 1
        else:
            self.linked_files.add(real)
            folder.names.add(os.path.basename(path))

    def _has(self, above: str, name: str) -> bool:
        return above in self.folders and name in self.folders[above].names


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def left_out_note(where: str, folders: Iterable[Folder]) -> list[str]:
    """At most one line, with the counts of files that are left out."""
    counts = sum((folder.left_out for folder in folders), Counter[str]())
    if not counts:
        return []
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    hint = " (--data.channels N reads .npy files)" if ".npy" in counts else ""
    return [f"{where}: left out: {listed}{hint}"]
