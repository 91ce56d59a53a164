"""`vit` in two processes, as torchrun starts them, each with options of its own."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.processes import together
from vit.cli.main import main


class Ended(NamedTuple):
    status: int | None
    err: str


def pair(
    folder: Path,
    shared: Sequence[object],
    own: Sequence[Sequence[object]] = ((), ()),
    *,
    seconds: float,
    before: str = "pass",
) -> list[Ended]:
    """The ends of both, run in `folder` with `shared` arguments and their `own`.

    `seconds` is the limit for each; `before` are Python statements that each executes first.
    """

    def work() -> int:
        os.chdir(folder)
        exec(before, {})
        return main([str(word) for word in (*shared, *own[int(os.environ["RANK"])])])

    ends = together(2, folder / "ends", work, seconds=seconds)
    errors = [(folder / "ends" / f"{rank}.err").read_text() for rank in range(2)]
    return [Ended(status, err) for status, err in zip(ends, errors, strict=True)]
