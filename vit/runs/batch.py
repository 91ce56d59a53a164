"""The batch of a run: a word in place of its size, and running out of memory in one line."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer

from vit.data.batches import DEFAULT_BATCH
from vit.data.module import ImageData
from vit.errors import UserError
from vit.runs.records import Record
from vit.tables import resolve, rows


class BatchByWord(Protocol):
    """Entry of the table of values for a word in place of the number data.batch_size."""

    def __call__(
        self, config: Namespace, recipes: list[Record], run: Path | None
    ) -> list[Callback]:
        """Callbacks of the run, which choose the number once it is set up; maybe none.

        Replaces the word in `config`, which becomes config.yaml. `run`: the run that is resumed.
        UserError where the word has no meaning.
        """
        ...


def settle_batch(config: Namespace, recipes: list[Record], run: Path | None) -> list[Callback]:
    """Completes data.batch_size in `config`; as BatchByWord if it is a word."""
    data = config.data
    row = rows("values").get(f"data.batch_size={data.batch_size}")
    if row is not None:
        by_word: BatchByWord = resolve(row)
        return by_word(config, recipes, run)
    if data.batch_size is None and data.global_batch is None:
        data.batch_size = DEFAULT_BATCH  # config.yaml says what was used
    return []


@contextmanager
def naming_a_smaller_batch(trainer: Trainer, data: ImageData) -> Generator[None]:
    """Turns running out of memory into a UserError that names half the batch."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not typed and "DefaultCPUAllocator" not in str(error):
            raise
        size, remedy = data.batch_size, "choose a smaller model or image"
        if size > 1:
            twice = 2 * trainer.accumulate_grad_batches
            remedy = f"try --data.batch_size {size // 2}"
            if data.global_batch is None:
                remedy += f" --trainer.accumulate_grad_batches {twice}"
        raise UserError(f"out of memory with batches of {size:,} images; {remedy}") from error
