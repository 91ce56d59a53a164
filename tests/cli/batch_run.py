"""What test_batch_choice.py starts: `vit fit` on two processes with devices of different memory.

Arguments: those of `vit fit`.
"""

import os
import sys
from typing import Any

import torch

from vit.cli import batch_memory
from vit.cli.main import main
from vit.training.classifier import ImageClassifier

LIMITS = {"0": 9, "1": 5}
"""Images that a step of each process can hold."""


def limit(most: int) -> None:
    """Lets steps of more than `most` images run out of memory, and the batch be chosen by trial."""
    inner = ImageClassifier.training_loss

    def training_loss(self: Any, batch: Any) -> torch.Tensor:
        loss = inner(self, batch)
        if len(batch[0]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss

    ImageClassifier.training_loss = training_loss  # pyright: ignore[reportAttributeAccessIssue]
    batch_memory.tries = lambda device: True


if __name__ == "__main__":
    limit(LIMITS[os.environ.get("LOCAL_RANK", "0")])
    sys.exit(main(sys.argv[1:]))
