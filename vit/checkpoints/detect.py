"""Which project a file comes from, by what is in it and never by its name."""

from collections.abc import Callable
from typing import NamedTuple

from vit.checkpoints import google, huggingface, huggingface_bit, native, timm, torchvision
from vit.checkpoints.files import WeightFile
from vit.checkpoints.foreign_json import check_types
from vit.checkpoints.huggingface_families import check_family
from vit.checkpoints.layout import Recognised, listed
from vit.checkpoints.timm_families import architecture_of, refused
from vit.errors import UserError


class Source(NamedTuple):
    """A project whose files are understood."""

    matches: Callable[[WeightFile], bool]
    recognise: Callable[[WeightFile], Recognised]


SOURCES = tuple(
    Source(module.matches, module.recognise)
    for module in (native, huggingface, huggingface_bit, google, torchvision, timm)
)
"""Asked in this order. Ours comes first, since our names are also timm's."""


def recognise(file: WeightFile) -> Recognised:
    """The file as its source understands it. UserError where none does."""
    if not native.matches(file):
        check_types(file)
    for source in SOURCES:
        if source.matches(file):
            return source.recognise(file)
    # Keys that no source has; where config.json names the model, its reason says more than they do.
    check_family(file)
    architecture = architecture_of(file)
    if architecture is not None:
        raise UserError(f"{file.path}: {refused(architecture)}")
    raise UserError(
        f"{file.path} holds no model that is known here; it has {len(file.shapes)} tensors such as "
        f"{listed(file.shapes, most=4)}"
    )
