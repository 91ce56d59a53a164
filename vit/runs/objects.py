"""Objects of a Python program in a run, which its directory can only describe."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from vit.data.module import ImageData
from vit.data.own import OwnImages
from vit.data.sources import SPLIT_NAMES
from vit.errors import UserError, some_of


@dataclass(frozen=True, kw_only=True)
class Objects:
    """What a call of `vit.fit` gives beside options. Raises UserError for no callback."""

    images: OwnImages | None = None
    callbacks: tuple[Callback, ...] = ()
    augment: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise UserError(f"callbacks has a {type(callback).__name__}; give Lightning's")

    def __bool__(self) -> bool:
        return bool(self.images or self.callbacks or self.augment)

    def described(self, data: ImageData) -> dict[str, Any]:
        """The section `own` of config.yaml: classes, counts and digests of the images, and names of
        the others."""
        images = {"classes": data.classes, "counts": data.counts, "digests": data.digests}
        section = {
            "images": self.images and images,
            "callbacks": [_name(type(callback)) for callback in self.callbacks],
            "augment": self.augment and _name(self.augment),
        }
        return {name: value for name, value in section.items() if value}

    def continuing(self, folder: Path) -> str:
        """How the run in `folder` is continued."""
        if self:
            return f"the same call of vit.fit with run_dir={str(folder)!r} continues it"
        return f"vit fit --run_dir {shlex.quote(str(folder))} continues it"


def _name(thing: Any) -> str:
    """Import path of a class or function, or that of an object's class."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def own_images(data: Any, val: Any, test: Any) -> OwnImages | None:
    """The images that arguments of `vit.fit` hold; None if `data` is a path or options alone."""
    as_options = data is None or isinstance(data, str | Path)
    if isinstance(data, Mapping):
        as_options = not SPLIT_NAMES.keys() & data.keys()
    if as_options and val is None and test is None:
        return None
    if data is None:
        raise UserError("val and test need the training images: give data")
    return OwnImages(data, val, test)


def check_given(section: Mapping[str, Any] | None, *names: str) -> None:
    """UserError if config.yaml describes objects (under one of `names`) that are not given."""
    missing = [name for name in names if name in (section or {})]
    if missing:
        raise UserError(
            f"the run has {some_of(missing)} from Python, which its directory does not hold: "
            "repeat the call of vit.fit with its run_dir, or give other images (--data FOLDER)"
        )
