"""One walk over a tree of image files, remembered in a small index file.

Hidden entries are counted and left out, and each real file is listed once, however symbolic links
are laid: real entries first, then links, and a link to a folder that holds the tree is a loop.
"""

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path

from vit.cache import cache_directory
from vit.console import Meter
from vit.errors import UserError
from vit.writing import write_text

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
)
# What unpacking an archive from macOS leaves behind.
LITTER = frozenset({"__MACOSX"})

_INDEX_VERSION = 1
# A folder that changed this shortly before the scan may change again within one tick of its clock.
_SETTLED_SECONDS = 2.0


@cache
def image_extensions(arrays: bool = False) -> frozenset[str]:
    """Lower-case extensions of the files that are taken for images; .avif where Pillow opens it.

    With `arrays`, NumPy's .npy is one of them.
    """
    from PIL import features

    more = {".avif"} if features.check("avif") else set()
    return frozenset(EXTENSIONS) | more | ({".npy"} if arrays else set())


@dataclass
class Folder:
    """One folder of a tree."""

    path: str
    """Below the top, "" for the top itself, "/" between parts."""
    real: str
    """Absolute, without symbolic links."""
    mtime_ns: int
    images: list[str] = field(default_factory=list)
    """Names, sorted."""
    others: dict[str, int] = field(default_factory=dict)
    """Files that are no images: extension -> count."""
    hidden: int = 0
    """Dot files."""


@dataclass
class Tree:
    """All folders below `top`, sorted by path."""

    top: str
    folders: list[Folder]
    repeats: int = 0
    """Symbolic links to what is listed already."""
    dangling: list[str] = field(default_factory=list)
    """Symbolic links to nothing, below the top."""

    def images(self) -> Iterator[str]:
        """Every image's path below the top."""
        return (_join(folder.path, name) for folder in self.folders for name in folder.images)


def scan(top: str, *, arrays: bool = False) -> Tree:
    """The tree below `top`, from the index file if no folder changed since it was written.

    With `arrays`, .npy files are images, too.

    Raises:
        UserError: A folder cannot be read.
    """
    real = os.path.realpath(top)
    known = image_extensions(arrays)
    index = _index_file(real, known)
    tree = _read_index(index)
    if tree is None:
        started = time.time()
        with Meter(f"scanning {top}", 0, "images", brief=True) as meter:
            tree = _Walk(real, meter, known).run()
        newest = max(folder.mtime_ns for folder in tree.folders) / 1e9
        if newest < started - _SETTLED_SECONDS:
            _write_index(index, tree)
    tree.top = top
    return tree


class _Walk:
    def __init__(self, top: str, meter: Meter, extensions: frozenset[str]) -> None:
        self.top = top
        self.extensions = extensions
        self.meter = meter
        self.tree = Tree(top, [])
        self.visited: dict[str, Folder] = {}
        self.names: dict[str, set[str]] = {}
        self.linked_files: set[str] = set()
        self.queue: deque[tuple[str, str]] = deque([("", top)])
        self.links: deque[tuple[str, str, Folder]] = deque()
        self.found = 0

    def run(self) -> Tree:
        while self.queue or self.links:
            while self.queue:
                path, real = self.queue.popleft()
                if real in self.visited:
                    self.tree.repeats += 1
                else:
                    self._list(path, real)
            if self.links:
                self._follow(*self.links.popleft())
        for folder in self.tree.folders:
            folder.images.sort()
        self.tree.folders.sort(key=lambda folder: folder.path)
        return self.tree

    def _list(self, path: str, real: str) -> None:
        try:
            folder = Folder(path, real, os.stat(real).st_mtime_ns)
            with os.scandir(real) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"cannot read folder {real}: {error.strerror}") from error
        self.visited[real] = folder
        self.tree.folders.append(folder)
        for entry in entries:
            if entry.name in LITTER:
                continue
            if entry.name.startswith("."):
                folder.hidden += not entry.is_dir(follow_symlinks=False)
            elif entry.is_symlink():
                self.links.append((_join(path, entry.name), entry.path, folder))
            elif entry.is_dir(follow_symlinks=False):
                self.queue.append((_join(path, entry.name), entry.path))
            else:
                self._add(folder, entry.name, regular=entry.is_file(follow_symlinks=False))
        self.meter.advance(self.found - self.meter.done)
        listed, known = len(self.visited), len(self.visited) + len(self.queue)
        self.meter.show(f"scanning {listed:,} of {known:,} folders of {self.top}")

    def _add(self, folder: Folder, name: str, *, regular: bool) -> None:
        extension = os.path.splitext(name)[1].lower()
        # A pipe or a device named .jpg would block its reader for ever.
        if regular and extension in self.extensions:
            folder.images.append(name)
            self.found += 1
        else:
            folder.others[extension] = folder.others.get(extension, 0) + 1

    def _follow(self, path: str, link: str, folder: Folder) -> None:
        """A symbolic link. It comes after all real entries, so that those win over it."""
        real = os.path.realpath(link)
        if os.path.isdir(real):
            if _holds(real, self.top):
                self.tree.repeats += 1
            else:
                self.queue.append((path, real))
        elif os.path.isfile(real):
            if self._listed(*os.path.split(real)) or real in self.linked_files:
                self.tree.repeats += 1
            else:
                self.linked_files.add(real)
                self._add(folder, os.path.basename(path), regular=True)
        else:
            self.tree.dangling.append(path)

    def _listed(self, real: str, name: str) -> bool:
        if real not in self.visited:
            return False
        if real not in self.names:
            self.names[real] = set(self.visited[real].images)
        return name in self.names[real]


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _index_file(real: str, extensions: frozenset[str]) -> Path:
    key = json.dumps([_INDEX_VERSION, real, sorted(extensions)])
    return cache_directory() / "index" / f"{sha256(key.encode()).hexdigest()[:32]}.json"


def _read_index(path: Path) -> Tree | None:
    """None if there is no index, it is damaged, or a folder changed since."""
    try:
        content = json.loads(path.read_text("utf-8"))
        folders = [Folder(**folder) for folder in content.pop("folders")]
        tree = Tree(folders=folders, **content)
        fresh = all(os.stat(folder.real).st_mtime_ns == folder.mtime_ns for folder in folders)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return tree if fresh and folders else None


def _write_index(path: Path, tree: Tree) -> None:
    """Atomically; an index that cannot be written costs a scan the next time, nothing else."""
    with contextlib.suppress(OSError):
        write_text(path, json.dumps(vars(tree), default=vars))


def ignored_note(where: str, folders: Iterable[Folder]) -> list[str]:
    """One line with the counts of files that are no images, or nothing."""
    others: dict[str, int] = {}
    hidden = 0
    for folder in folders:
        hidden += folder.hidden
        for extension, count in folder.others.items():
            others[extension] = others.get(extension, 0) + count
    ordered = sorted(others.items(), key=lambda item: (-item[1], not item[0], item[0]))
    counts = [f"{extension or 'no extension'} {count:,}" for extension, count in ordered]
    if hidden:
        counts.append(f"hidden {hidden:,}")
    hint = " (--data.channels N reads .npy files)" if ".npy" in others else ""
    return (
        [f"{where}: files that are not images left out: {', '.join(counts)}{hint}"]
        if counts
        else []
    )
