"""Folders with lists of VTAB-1k, as a source of images."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.data.roots import Source

if TYPE_CHECKING:  # torch
    from vit.data.settings import Reading
    from vit.data.sources import Splits


class VtabTask(Source):
    """A folder with lists of VTAB-1k. A model is scored on it as on any folder."""

    def takes(self, root: Any) -> bool:
        return isinstance(root, str) and is_task(root)

    def splits(self, root: str, reading: "Reading") -> "Splits":
        from vit.data.folder import load_folder
        from vit.extensions.transfer.vtab import load_task

        if reading.model is not None:
            return load_folder(root, reading)
        return load_task(root, search=reading.cut.val_fraction > 0)


def is_task(folder: str | os.PathLike[str]) -> bool:
    """The folder has lists of VTAB-1k."""
    return (Path(folder).expanduser() / "train800val200.txt").is_file()
