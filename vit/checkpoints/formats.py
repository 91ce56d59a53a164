"""The formats that weights are read from and written in: one row and one module each.

Light, so that the command line names them without torch.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from vit.checkpoints.exporting import Export, NativeInfo
    from vit.checkpoints.files import WeightFile
    from vit.checkpoints.layout import ModelConfig, Recognised

FORMATS = {
    "native": "",
    "timm": "",
    "torchvision": ".pth",
    "huggingface": "",
    "google": ".npz",
}
"""Name of a format, and of its module in this folder -> suffix of the file that it writes, "" for a
directory. Files are compared in this order: ours first, since our names are also timm's."""


class Format(Protocol):
    """What the module of a format defines."""

    def matches(self, file: "WeightFile") -> bool:
        """Whether the names of the tensors are this format's."""
        ...

    def recognise(self, file: "WeightFile") -> "Recognised":
        """The file as one of our models; UserError where it would not give the same logits."""
        ...

    def write(
        self, config: "ModelConfig", state: "Mapping[str, Tensor]", info: "NativeInfo"
    ) -> "Export":
        """The model in this format; UserError where no model of the project is the same."""
        ...


def format_named(name: str) -> Format:
    """The module of a format in FORMATS."""
    return import_module(f"{__package__}.{name}")  # pyright: ignore[reportReturnType]
