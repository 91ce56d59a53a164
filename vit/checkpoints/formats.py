"""The formats that weights are read from and written in: one row and one module each.

Light, so that the command line names them without torch.
"""

from importlib import import_module
from typing import Any

FORMATS = {
    "native": "",
    "timm": "",
    "torchvision": ".pth",
    "huggingface": "",
    "google": ".npz",
}
"""Name of a format, and of its module in this folder -> suffix of the file that it writes, "" for a
directory. Files are compared in this order: ours first, since our names are also timm's.

A module has three functions: `matches(file: WeightFile) -> bool`, whether the names of the tensors
are this format's; `recognise(file: WeightFile) -> Recognised`; and `write(config: ModelConfig,
state: Mapping[str, Tensor], info: NativeInfo) -> Export`. The last two raise UserError for a model
that would not give the same logits."""


def format_named(name: str) -> Any:
    """The module of a format in FORMATS."""
    return import_module(f"{__package__}.{name}")
