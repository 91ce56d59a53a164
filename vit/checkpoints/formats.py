"""The formats that weights are read from and written in: one row and one module each.

Light, so that the command line names them without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vit.errors import UserError, some_of

if TYPE_CHECKING:
    from vit.checkpoints.files import WeightFile
    from vit.checkpoints.layout import Recognised

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


def recognise(file: "WeightFile") -> "Recognised":
    """The file as its format understands it."""
    try:
        for source in map(format_named, FORMATS):
            if source.matches(file):
                return source.recognise(file)
        raise _unknown(file)
    except UserError as error:
        if type(error) is UserError and str(file.path.parent) not in str(error):
            raise UserError(f"{file.path}: {error}") from error
        raise
    except KeyError as error:
        missing = f"{file.path} is incomplete, or of a family that is not read: no {error.args[0]}"
        raise UserError(missing) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not file.config and not file.preprocessor:
            raise
        # JSON of other libraries is edited by hand and written by other versions.
        raise UserError(
            f"{file.path.parent}: config.json or preprocessor_config.json has a value of a wrong "
            f"kind ({type(error).__name__}: {error})"
        ) from error


def _unknown(file: "WeightFile") -> UserError:
    """For keys that no format has; config.json may name the model."""
    from vit.checkpoints.huggingface.reading import check_family
    from vit.checkpoints.refusals import refused
    from vit.checkpoints.timm.families import architecture_of

    architecture = architecture_of(file)
    if architecture is not None:
        return refused("timm", architecture)
    check_family(file)
    return UserError(
        f"{file.path} holds no model that is known here; it has {len(file.shapes)} tensors such as "
        f"{some_of(sorted(file.shapes), 4, ' ')}"
    )
