"""Which project a file comes from, by what is in it and never by its name."""

from vit.checkpoints import native
from vit.checkpoints.files import WeightFile
from vit.checkpoints.foreign_json import check_types
from vit.checkpoints.formats import FORMATS, format_named
from vit.checkpoints.huggingface.families import check_family
from vit.checkpoints.layout import Recognised, listed
from vit.checkpoints.timm.families import architecture_of, refused
from vit.errors import UserError


def recognise(file: WeightFile) -> Recognised:
    """The file as its format understands it. UserError where none does."""
    if not native.matches(file):
        check_types(file)
    for source in map(format_named, FORMATS):
        if source.matches(file):
            return source.recognise(file)
    # Keys that no source has; where config.json names the model, its reason says more than they do.
    architecture = architecture_of(file)
    if architecture is not None:
        raise UserError(f"{file.path}: {refused(architecture)}")
    check_family(file)
    raise UserError(
        f"{file.path} holds no model that is known here; it has {len(file.shapes)} tensors such as "
        f"{listed(file.shapes, most=4)}"
    )
