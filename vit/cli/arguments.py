"""The parser of the commands, types of their arguments, and lists of image files."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any, NoReturn

from vit.errors import UserError
from vit.tables import rows


class OneLineParser(argparse.ArgumentParser):
    """Parser of a command: no abbreviations, help texts as written, one-line errors."""

    def __init__(self, **options: Any) -> None:
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=as_written, **options)

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
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number above 0")


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


def add_engine(add: Callable[..., object]) -> None:
    """Adds --engine."""
    text = "what computes the model (default: torch); openvino runs on the CPU"
    add("--engine", choices=("torch", *rows("runtimes")), default="torch", help=text)


def add_spreadsheet(add: Callable[..., object]) -> None:
    """Adds --spreadsheet, for commands that write a CSV for people."""
    text = "prefix names in the CSV that a spreadsheet would run as formulas with '"
    add("--spreadsheet", action="store_true", help=text)


def asked_device(options: argparse.Namespace) -> str | None:
    """The value of --device; cpu for a model that another engine computes."""
    from vit.inference.runtimes import is_export

    on_cpu = options.engine != "torch" or is_export(options.model)
    return options.device or ("cpu" if on_cpu else None)


@contextmanager
def chosen_device(name: str | None) -> Iterator[str]:
    """The device `name`, by default a GPU if there is one. UserError if it cannot be used."""
    import torch

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        yield device
    except (RuntimeError, AssertionError) as error:  # torch raises either for a missing device
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {device} cannot be used: {reason}") from error


def pictures(arguments: Iterable[str], *, arrays: bool = False) -> Iterator[str]:
    """Named files, and the pictures in named folders; with `arrays` .npy files too."""
    from vit.data.scan import image_files

    for argument in arguments:
        path = Path(argument).expanduser()
        if path.is_dir():
            yield from image_files(str(path), arrays=arrays)
        elif path.exists() or path.is_symlink():  # a pipe, too, or what cannot be read
            yield str(path)
        elif matches := sorted(glob(str(path), recursive=True)):  # a quoted pattern
            yield from dict.fromkeys(pictures(matches, arrays=arrays))
        else:
            raise UserError(f"no such picture or folder: {path}")
