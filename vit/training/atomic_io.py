"""Checkpoint files that are whole or absent."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from typing_extensions import override

from vit.writing import atomic


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk, then renames.

    Lightning's own writes to the system's temporary folder and moves: on another file system that
    is a copy, and a crash during it leaves half a checkpoint under the final name.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        if storage_options is not None:
            raise TypeError("storage_options have no meaning for a local file")
        if "://" in str(path):  # a remote store: only Lightning's own way of writing reaches it
            return super().save_checkpoint(checkpoint, path)
        try:
            with atomic(Path(path)) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)
        except RuntimeError as error:
            # On a full disk torch fails once more while it closes the file, and hides the reason.
            reason = error.__context__
            if isinstance(reason, OSError):
                raise OSError(reason.errno, reason.strerror, str(path)) from error
            raise
