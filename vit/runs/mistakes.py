"""The mistakes in options, in one line each."""
# pyright: reportUnknownMemberType=false

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser

from vit.errors import MESSAGE, UserError, did_you_mean, shorten, some_of, user_error_in
from vit.runs.short_names import SHORT

# The parser's words around the reason that a value is not taken.
_AROUND = re.compile(
    r"Expected a path but .*? either not accessible or invalid (- )?|"
    r"(?<=<class 'float'>) - Expected a dot import path string: \S+|"  # of a rate as a tensor
    r"Does not validate against any of the Union subtypes Subtypes: .*? Errors: |"
    r"- Expected a <class 'NoneType'> |Given value type: <class '[\w.]+'> ?|"
    r"(Given|Got) value: (NestedArg|Namespace)\(.*\)$|typing\.(?=Literal)"
)
_KEY = re.compile(r'Parser key "([\w.]+)":[ -]*')
_UNKNOWN = re.compile(r"(?:unrecognized arguments: --|option '|^Option ')([\w.-]+)")


def check_given(section: Sequence[str] | None, *names: str) -> None:
    """UserError if the section `own` of config.yaml has one of `names`, which are not given."""
    missing = [name for name in names if name in (section or ())]
    if missing:
        raise UserError(
            f"the run has {some_of(missing)} from Python, which its directory does not hold: "
            "repeat the call of vit.fit with its run_dir, or give other images (--data FOLDER)"
        )


@contextmanager
def explaining(parser: LightningArgumentParser, where: str = "") -> Generator[None]:
    """Turns mistakes in options into a UserError, which begins with `where`."""
    try:
        yield
    except (ArgumentError, TypeError, KeyError, ValueError, ImportError) as error:
        raise UserError(f"{where}{_explained(parser, error)}") from error


def _explained(parser: LightningArgumentParser, error: BaseException) -> UserError:
    """The parser's words in one line, with the nearest name for an unknown option.

    Re-raises what is no mistake in an option.
    """
    mistake = user_error_in(error)
    if mistake is not None:
        return mistake
    if not isinstance(error, ArgumentError | ValueError | ModuleNotFoundError):
        raise error
    text = _AROUND.sub("", " ".join(str(error).split()))
    if parts := _KEY.split(text)[1:]:  # names, each with its message, from outer to inner
        text = f"{'.'.join(dict.fromkeys(parts[::2]))}: {parts[-1]}"
    text = shorten(re.sub(r"<class '([\w.]+)'>", r"\1", text).strip(), MESSAGE)
    if unknown := _UNKNOWN.search(text):
        names = {*SHORT, *parser.get_defaults().keys()} - {unknown[1]}
        text += did_you_mean(unknown[1], names)
    return UserError(text)
