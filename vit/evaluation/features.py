"""What a frozen model makes of the images of a split: computed once, then read from a file.

The file is named by a hash of everything that the numbers depend on: weights and configuration,
the images (path, size and time of change of each file, or the pixels in memory) in their order, the
preprocessing, the precision and which layer. Whatever differs is computed anew.
Shapes: n images, d features.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vit.cache import cached
from vit.checkpoints.native import fingerprint
from vit.checkpoints.writing import write_safetensors
from vit.data.sources import ImageSet, PathList, SplitName
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.matmul import pack
from vit.models.zoo import Model
from vit.progress import Meter
from vit.writing import atomic

if TYPE_CHECKING:
    from vit.data.module import ImageData

Layer = Literal["pre_logits", "pooled", "logits"]
"""pre_logits: what the head receives. pooled: the same before the tanh layer that some models have
there. logits: what the head gives."""

Precision = Literal["float32", "float64", "bfloat16"]

_VERSION = 1
"""To be raised when the same model, image and settings give other numbers than before."""


@dataclass(frozen=True)
class Features:
    """Features of the images of a split, in their order."""

    values: np.ndarray
    """(n, d) float32, or float64 where the model computed in it."""
    labels: np.ndarray
    """(n,) class indices, or (n, k) zeros and ones."""
    indices: np.ndarray
    """(n,) places in the split: all of them, unless unreadable images were skipped."""
    cached: bool
    """Whether they were read from a file."""
    seconds: float


class Extractor:
    """Gives the features of splits under one model, which it puts into evaluation mode.

    `cache` is the folder of the files, None for none. `precision` is that of the whole model.
    """

    def __init__(
        self,
        model: Model,
        layer: Layer,
        *,
        precision: Precision = "float32",
        device: str = "cpu",
        cache: Path | None = None,
    ) -> None:
        config = model.config
        if layer == "logits" and not config.num_classes:
            raise UserError("the model has no head, so it gives no logits; use one with classes")
        tanh = isinstance(config, ViTConfig) and config.representation_size is not None
        # Without the tanh layer these are the same, and need one file only.
        self.layer: Layer = "pooled" if layer == "pre_logits" and not tanh else layer
        self.precision: Precision = precision
        self.device = device
        self.cache = cache
        self.weights = ""
        if cache is not None:
            state = model.state_dict()
            self.weights = fingerprint({k: v.detach().cpu().contiguous() for k, v in state.items()})
        self.model = model.eval().to(device, getattr(torch, precision))

    def __call__(self, data: "ImageData", split: SplitName) -> Features:
        """The features of a split; `data.preprocess` is how its images are brought to the model.

        Raises UserError for an unreadable image, which it names, unless `data` skips those, and
        for numbers that are not finite.
        """
        start = time.monotonic()
        images, file, key, found = data.image_set(split), Path(), "", None
        if self.cache is not None:
            key = self._key(data, images)
            file = self.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
            found = _read(cached(file), key)
        values, indices = found or self._compute(data, split)
        if self.cache is not None and found is None:
            _write(file, key, values, indices)
        return Features(
            values=values.numpy(),
            labels=images.labels[indices.numpy()],
            indices=indices.numpy(),
            cached=found is not None,
            seconds=time.monotonic() - start,
        )

    def _key(self, data: "ImageData", images: ImageSet) -> str:
        return json.dumps(
            {
                "version": _VERSION,
                "torch": torch.__version__,
                "weights": self.weights,
                "model": self.model.config.to_dict(),
                "layer": self.layer,
                "precision": self.precision,
                "images": images_digest(images),
                "preprocess": data.preprocess.to_dict(),
                "on_error": data.loading.on_error,
            },
            sort_keys=True,
        )

    @torch.inference_mode()
    def _compute(self, data: "ImageData", split: SplitName) -> tuple[Tensor, Tensor]:
        """(n, d) and (n,), on the CPU."""
        pack(self.model)
        total, dtype = data.expected_images(split), getattr(torch, self.precision)
        values, places, done = torch.empty(0), torch.empty(total, dtype=torch.int64), 0
        with Meter(f"features of {split}", total, "img") as meter, _whole_float32():
            for images, _, indices in data.evaluation_loader(split):
                batch = slice(done, done + len(indices))
                done = batch.stop
                meter.advance(len(indices))
                if not len(indices):  # a batch of unreadable images
                    continue
                pixels = data.preprocess.normalize(images.to(self.device)).to(dtype)
                rows = self._layer_of(pixels)
                if not len(values):
                    kept = torch.float64 if dtype == torch.float64 else torch.float32
                    values = torch.empty(total, rows.shape[1], dtype=kept)
                values[batch], places[batch] = rows.cpu(), indices
        if done + data.skipped_images(split) != total:
            raise RuntimeError(f"{done} of {total} images of {split} were seen")
        if not values[:done].isfinite().all():
            raise UserError(
                f"features of {split} are not finite numbers in {self.precision}: the weights are "
                "damaged, or the precision is too low"
            )
        return values[:done].contiguous(), places[:done].contiguous()

    def _layer_of(self, pixels: Tensor) -> Tensor:
        if self.layer == "logits":
            return self.model(pixels)
        model: Any = self.model
        pooled = model.pool(model.features(pixels))
        return model.pre_logits(pooled) if self.layer == "pre_logits" else pooled


def images_digest(images: ImageSet) -> str:
    """SHA-256 over path, size and time of change of each file in order, or over the pixels."""
    digest = hashlib.sha256()
    if not isinstance(images.items, PathList):
        digest.update(f"{images.items.shape} {images.items.dtype}".encode())
        digest.update(np.ascontiguousarray(images.items).data)
        return digest.hexdigest()
    for path in images.items:
        try:
            status = os.stat(path)
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:  # whoever opens it will name it
            state = "absent"
        digest.update(os.fsencode(path) + f"\0{state}\n".encode())
    return digest.hexdigest()


@contextmanager
def _whole_float32() -> Iterator[None]:
    """cuDNN's convolutions take TF32 for float32 by default: ten bits of the patch embedding."""
    cudnn: Any = torch.backends.cudnn
    convolution = cudnn.conv
    before = convolution.fp32_precision
    convolution.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolution.fp32_precision = before


def _read(file: Path, key: str) -> tuple[Tensor, Tensor] | None:
    """Values and indices; None where there is no such file, or where it is not whole."""
    if not file.is_file():
        return None
    try:
        with safe_open(str(file), framework="pt") as content:
            told = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}
        if told["key"] == key and told["sha256"] == fingerprint(tensors):
            return tensors["values"], tensors["indices"]
    except (SafetensorError, OSError, KeyError, ValueError):
        pass
    print(f"note: {file} is damaged; its features are computed again", file=sys.stderr)
    return None


def _write(file: Path, key: str, values: Tensor, indices: Tensor) -> None:
    tensors = {"values": values, "indices": indices}
    metadata = {"format": "pt", "key": key, "sha256": fingerprint(tensors)}
    try:
        with atomic(file) as temporary:
            write_safetensors(temporary, tensors, metadata)
    except OSError as error:  # a full disk must not cost what was computed
        reason = f"{error.strerror}: {file}"
        print(f"note: the features could not be kept ({reason})", file=sys.stderr)
