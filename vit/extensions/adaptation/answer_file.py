"""Answers that a teacher computes once. Shapes: b images, n pixels of an image, w values."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vit.errors import UserError
from vit.shapes import Float

CHECK = 8
"""Bytes of a row before its values."""


class AnswerFile:
    """Rows of float16 values on disk, each with a check of what it was computed from.

    The check is a sum over the bits of pixels and values, with random weights that follow from a
    key. So neither other images, another key, nor a row that was written in part is taken for the
    answer. Processes of one machine share the file.

    Args:
        rows: Number of rows, which take their space on disk at once.
        width: Values in a row.
        key: Identity of the teacher's weights, hexadecimal.

    UserError without that space.
    """

    def __init__(self, path: Path, rows: int, width: int, key: str) -> None:
        self.size, self._start = rows * (CHECK + 2 * width), int(key, 16)
        self._weights: dict[int, Tensor] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        try:  # a full disk would end the process at the first write to a file without its space
            with suppress(AttributeError):  # macOS has no such function
                os.posix_fallocate(file, 0, self.size)
            os.truncate(file, max(self.size, os.fstat(file).st_size))  # another program may read it
        except OSError as error:
            gigabytes = f"{self.size / 1e9:,.1f} GB"
            raise UserError(
                f"{path} needs {gigabytes}: {error.strerror}; keep fewer crops (--teacher-cache)"
            ) from error
        finally:
            os.close(file)
        self._rows = np.memmap(path, np.uint8, "r+", shape=(rows, CHECK + 2 * width))

    def sums(self, images: Float[Tensor, "b c h w"]) -> Tensor:
        """Sums int64 `b` over the bits of images, on the CPU: they tell images from others."""
        return self._sums(images.float().contiguous().view(torch.int32).flatten(1))

    def read(self, places: Tensor, sums: Tensor) -> tuple[Float[Tensor, "b w"], Tensor]:
        """The rows at `places`, float16, and `b` whether each is of the image of its sum."""
        rows = self._rows[places.numpy()]
        checks = torch.from_numpy(np.ascontiguousarray(rows[:, :CHECK])).view(torch.int64)
        values = torch.from_numpy(np.ascontiguousarray(rows[:, CHECK:])).view(torch.float16)
        return values, checks[:, 0] == self._checks(sums, values)

    def write(self, places: Tensor, sums: Tensor, values: Float[Tensor, "b w"]) -> None:
        """Keeps float16 values of the images of `sums`."""
        checks = self._checks(sums, values)[:, None].view(torch.uint8)
        rows = torch.cat([checks, values.contiguous().view(torch.uint8)], dim=1)
        self._rows[places.numpy()] = rows.numpy()

    def _checks(self, sums: Tensor, values: Float[Tensor, "b w"]) -> Tensor:
        # A row of zeros, as the file has them at first, is the answer to no image, black ones too.
        return sums + self._sums(values.view(torch.int16)) + (self._start % 2**62 | 1)

    def _sums(self, bits: Tensor) -> Tensor:
        """Weighted sums modulo 2**64 of integers `b n`, on the CPU."""
        count = bits.shape[1]
        if count not in self._weights:
            generator = torch.Generator().manual_seed(self._start % 2**63)
            weights = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
            self._weights[count] = weights.to(bits.device)
        weights = self._weights[count]
        # Row by row, as int64 of a batch of photos would take a gigabyte.
        return torch.stack([(row.long() * weights).sum() for row in bits]).cpu()
