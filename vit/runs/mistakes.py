"""The mistakes in options, in one line each."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser

from vit.errors import MESSAGE, UserError, did_you_mean, shorten, some_of, user_error_in
from vit.training.network_training import OF_DATA
from vit.yaml_reader import read_options


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every option in nested mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (value before, value now), for options that differ."""
    then, new = dict(flat(before)), dict(flat(now))
    return {n: (then.get(n), new.get(n)) for n in new | then if then.get(n) != new.get(n)}


def listed(differing: Mapping[str, tuple[Any, Any]]) -> str:
    """Such as 'data.augment.flip (was True, is False)'."""
    return some_of((f"{n} (was {was}, is {now})" for n, (was, now) in differing.items()), 8)


def _options_of(kind: type, prefix: str) -> Iterator[str]:
    """Dotted names of the arguments of a constructor, and of their dataclasses."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("vit.")]
    hints = {n: h for base in ours for n, h in get_type_hints(base.__init__).items()}
    for name, hint in hints.items():
        if name == "return" or name in OF_DATA or hint is Any:  # **options of a class above
            continue
        yield f"{prefix}{name}"
        for option in (hint, *get_args(hint)):
            if is_dataclass(option) and isinstance(option, type):
                yield from _options_of(option, f"{prefix}{name}.")


def _names(args: list[str]) -> list[str]:
    """Dotted names of the options, typed and in the recipes."""
    names = [arg[2:].partition("=")[0] for arg in args if arg.startswith("--")]
    for arg in args:
        if arg.startswith("--config="):
            names += [name for name, _ in flat(read_options(Path(arg.partition("=")[2])))]
    return [name.removesuffix("+") for name in names if "." in name]


def explained(
    parser: LightningArgumentParser, args: list[str], error: BaseException, *modules: type
) -> UserError:
    """One line for a bad option, with the nearest for an unknown one. Re-raises other errors."""
    mistake = user_error_in(error)
    if mistake is not None:
        return mistake
    if isinstance(error, ValueError):  # from a constructor, inside the parser's
        return UserError(shorten(" ".join(str(error.__cause__ or error).split()), MESSAGE))
    if not isinstance(error, ArgumentError | ModuleNotFoundError):
        raise error
    options = {*parser.get_defaults().keys()}.union(*(_options_of(m, "model.") for m in modules))
    sections = {name.rpartition(".")[0] for name in options}
    for name in _names(args):
        parents = {name[:i] for i, letter in enumerate(name) if letter == "."}
        # Below an option that is no section are the arguments of a class, or a mapping.
        if name not in options | sections and not parents & (options - sections):
            return UserError(f"there is no option {name}{did_you_mean(name, options)}")
    return UserError(shorten(_in_short(" ".join(str(error).split())), MESSAGE))


_KEYS = re.compile(r'Parser key "([^"]+)"')
_WANTED = re.compile(
    r"(?:Expected an?|conform to restriction) (.+?)(?= - |\. Got value| Given value type|$)"
)
_VALUE = re.compile(r"(?:(?:Got|Given) value|Seed): (.+?)(?= - |\. Got value| does not conf|$)")
_NOT_CALLABLE = re.compile(r"a callable class: (.+?)(?=\. Got value| - Expected| Given value|$)")
_WORDS = {
    "bool": "true | false",
    "dict": "a mapping",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
}


def _in_short(message: str) -> str:
    """jsonargparse's account of a value of a wrong type: OPTION=VALUE must be TYPE or TYPE."""
    message = re.sub(
        r"Not of type \w+: invalid literal for .*: '(.*)'",
        r"Expected a int. Got value: \1",
        message,
    )
    names, value, wanted = _KEYS.findall(message), _VALUE.search(message), []
    for kind in _WANTED.findall(message):
        if "<class" in kind:
            kind = kind.strip("<>").removeprefix("class ").strip("'")
        if "Literal[" in kind:
            kind = kind[kind.index("[") + 1 : -1].replace("'", "").replace(", ", " | ")
        kind = "an import path" if "import path" in kind else re.sub("v(?=[<>])", "", kind)
        if kind != "NoneType" and not kind.startswith("path"):
            wanted.append(_WORDS.get(kind, kind))
    if names and not wanted and (reason := _NOT_CALLABLE.search(message)):
        return f"{'.'.join(names)}: {reason[1]}"
    if not (names and value and wanted):
        return message
    return f"{'.'.join(names)}={value[1]} must be {' or '.join(dict.fromkeys(wanted))}"
