"""The commands' parser, argument types, and lists of image files."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from vit.errors import UserError
from vit.tables import rows


class OneLineParser(argparse.ArgumentParser):
    """The parser of a command: no abbreviations, help texts as written, one-line errors."""

    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"allow_abbrev": False, "formatter_class": form, **options})

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  # overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """As argparse's; UserError for KEY=VALUE, which is an option without its dashes."""
        for before, word in pairwise(["", *(args or ())]):
            name, equals, value = word.partition("=")
            option = self._option_string_actions.get(before)
            is_value = option is not None and option.nargs != 0
            if equals and f"--{name}" in self._option_string_actions and not is_value:
                self.error(f"{word!r} is not an option; type --{name} {value}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def pixels(text: str) -> tuple[int, int]:
    """'224' or '192x256' (height first) as (height, width)."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"{text} is not a size in pixels, such as 224 or 192x256")
    return int(sides[0]), int(sides[-1])


def number(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def whole_number(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def share(text: str) -> float:
    """A share in (0, 1]."""
    if number(text) > 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share in (0, 1], such as 0.4")
    return float(text)


def add_engine(add: Callable[..., Any]) -> None:
    """Adds --engine."""
    choices = ("torch", *rows("runtimes"))
    add("--engine", choices=choices, default="torch", help="openvino: on the CPU (default torch)")


def add_spreadsheet(add: Callable[..., Any]) -> None:
    """Adds --spreadsheet, of every command that writes a CSV for people."""
    text = "put ' before names in the CSV that a spreadsheet would run as formulas"
    add("--spreadsheet", action="store_true", help=text)


def asked_device(options: argparse.Namespace) -> str | None:
    """--device, and cpu for a model that an engine computes."""
    from vit.inference.runtimes import is_export

    elsewhere = options.engine != "torch" or is_export(options.model)
    return options.device or ("cpu" if elsewhere else None)


@contextmanager
def chosen_device(name: str | None) -> Iterator[str]:
    """The device of --device, by default a GPU if there is one. UserError if it is unusable."""
    import torch

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        yield device
    except (RuntimeError, AssertionError) as error:  # torch raises either for a missing device
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {device} cannot be used: {reason}") from error


def pictures(arguments: Iterable[str], *, arrays: bool = False) -> Iterator[str]:
    """The named files, and the pictures in the named folders; with `arrays` .npy files too."""
    from vit.data.scan import image_files

    for argument in arguments:
        path = Path(argument).expanduser()
        if path.is_dir():
            yield from image_files(str(path), arrays=arrays)
        elif path.is_file():
            yield str(path)
        elif inside := sorted(glob(str(path), recursive=True)):  # a pattern that was quoted
            yield from inside
        else:
            raise UserError(f"no such picture or folder: {path}")
