"""The mistakes in options, in one line each."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser

from vit.errors import MESSAGE, UserError, did_you_mean, shorten, some_of, user_error_in
from vit.runs.short_names import OTHER_WORDS, SHORT
from vit.yaml_reader import flat

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


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (value before, value now), for options that differ."""
    then, new = dict(flat(before)), dict(flat(now))
    names = [name for name in new | then if then.get(name) != new.get(name)]
    return {name: (_with_path(then, name), _with_path(new, name)) for name in names}


def _with_path(options: Mapping[str, Any], name: str) -> Any:
    """The value of an option; the digest of weights with their path, of which it is."""
    value, of_weights = options.get(name), name.replace("weights.", "", 1)
    known = value is not None and of_weights != name and options.get(of_weights) is not None
    return f"{value} at {options[of_weights]}" if known else value


def listed(differing: Mapping[str, tuple[Any, Any]]) -> str:
    """Such as 'data.augment.flip (was True, is False)'."""
    pairs = ((n, shorten(was), shorten(now)) for n, (was, now) in differing.items())
    return some_of((f"{n} (was {was}, is {now})" for n, was, now in pairs), 8)


def check_given(section: list[str] | None, *names: str) -> None:
    """UserError if the section `own` of config.yaml has one of `names`, which are not given."""
    missing = [name for name in names if name in (section or ())]
    if missing:
        raise UserError(
            f"the run has {some_of(missing)} from Python, which its directory does not hold: "
            "repeat the call of vit.fit with its run_dir, or give other images (--data FOLDER)"
        )


@contextmanager
def explaining(parser: LightningArgumentParser, where: str = "") -> Iterator[None]:
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
    if found := _KEY.split(text)[1:]:  # names, each with what is said of it, from outer to inner
        text = f"{'.'.join(dict.fromkeys(found[::2]))}: {found[-1]}"
    text = shorten(re.sub(r"<class '([\w.]+)'>", r"\1", text).strip(), MESSAGE)
    if unknown := _UNKNOWN.search(text):
        names = {*SHORT, *OTHER_WORDS, *parser.get_defaults().keys()} - {unknown[1]}
        text += did_you_mean(unknown[1], names)
    return UserError(text)
