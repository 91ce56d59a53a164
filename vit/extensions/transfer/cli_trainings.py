"""Commands that start runs of `vit fit`."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from vit.console import say
from vit.errors import UserError
from vit.signals import Stopped


@contextmanager
def trainings(command: str, args: list[str]) -> Iterator[None]:
    """Context of a command that starts runs of `vit fit`: UserError under torchrun; after a signal,
    prints the command that goes on."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"start `vit {command}` alone, not by torchrun; it starts processes itself")
    try:
        yield
    except Stopped:
        say(f"stopped; this continues: {shlex.join(['vit', command, *args])}")
        raise
