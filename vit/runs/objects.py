"""Objects of a Python program in a run, which its directory can only describe."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from vit.data.own import OwnImages
from vit.data.sources import SPLIT_NAMES
from vit.errors import UserError, some_of


@dataclass(frozen=True, kw_only=True)
class Objects:
    """What a call of `vit.fit` gives beside options."""

    images: OwnImages | None = None
    callbacks: tuple[Callback, ...] = ()
    augment: Callable[..., Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.given)

    @property
    def given(self) -> list[str]:
        """The section `own` of config.yaml: which of them there are."""
        return [name for name, value in vars(self).items() if value]

    def continuing(self, folder: Path) -> str:
        """How the run in `folder` is continued."""
        if self:
            return f"the same call of vit.fit with run_dir={str(folder)!r} continues it"
        return f"vit fit --run_dir {shlex.quote(str(folder))} continues it"


def own_images(data: Any, val: Any, test: Any) -> OwnImages | None:
    """The images that arguments of `vit.fit` hold; None if `data` is a path or options alone."""
    as_options = data is None or isinstance(data, str | Path)
    if isinstance(data, Mapping):
        as_options = not SPLIT_NAMES.keys() & data.keys()
    if as_options and val is None and test is None:
        return None
    return OwnImages(data, val, test)


def check_given(section: list[str] | None, *names: str) -> None:
    """UserError if the section `own` of config.yaml has one of `names`, which are not given."""
    missing = [name for name in names if name in (section or ())]
    if missing:
        raise UserError(
            f"the run has {some_of(missing)} from Python, which its directory does not hold: "
            "repeat the call of vit.fit with its run_dir, or give other images (--data FOLDER)"
        )
