"""Options of a run that a Python program calls: some of them are its objects."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback
from PIL.Image import Image

from vit.data.module import ImageData
from vit.errors import UserError
from vit.runs.options import Options
from vit.runs.short_names import Words


class ProgramOptions(Options):
    """Options of words and of objects, of which config.yaml has only the names."""

    def __init__(
        self,
        args: list[str] | Words,
        *,
        images: object = None,
        callbacks: Sequence[Callback] = (),
        augment: Callable[[Image], Any] | None = None,
    ) -> None:
        objects = {"images": images, "callbacks": callbacks, "augment": augment}
        self._objects: dict[str, Any] = {name: value for name, value in objects.items() if value}
        self.objects = [*self._objects]
        super().__init__(args)

    def resolve(self) -> None:
        super().resolve()
        if "augment" in self._objects:
            data = self._built.data
            data.augment = replace(data.augment, extra=self._objects["augment"])

    def check_images(self) -> None:
        if "images" not in self._objects:
            super().check_images()
            return
        data, built, typed = self.config.data, self._built.data, self.words.typed
        for name in ("dataset", "root"):
            if f"data.{name}" in typed and data[name] is not None:
                raise UserError(
                    f"data.{name}={data[name]} and data are two sets of images; give one"
                )
        data.dataset = data.root = built.dataset = built.root = None

    def make_data(self, images: object = None) -> ImageData:
        return super().make_data(self._objects.get("images"))

    def listed(self, name: Literal["callbacks", "plugins"]) -> list[Any]:
        return [*super().listed(name), *self._objects.get(name, ())]

    def continuing(self, folder: Path) -> str:
        return f"the same call of vit.fit with run_dir={str(folder)!r} continues it"
