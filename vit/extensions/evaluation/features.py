"""Features of the images of a split, from a frozen model, cached in a file.

The file name is a hash of weights and configuration, the engine that computes them, the images in
order (path, size and modification time of each file, or the pixels in memory), preprocessing,
precision and layer.
Shapes: n images, d features.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from vit.console import Meter, note
from vit.data.sources import ImageSet, SplitName
from vit.errors import UserError
from vit.extensions.serving.engines import Engine
from vit.extensions.sources.digests import images_digest
from vit.inference.runtimes import Precision
from vit.models.config import ViTConfig
from vit.models.zoo import Model, ModelConfig
from vit.preprocessing import Preprocess
from vit.weights.sealed import fingerprint, read_sealed, write_sealed

if TYPE_CHECKING:
    from vit.data.module import ImageData

Layer = Literal["pre_logits", "pooled", "logits", "patches"]
"""pre_logits: input of the head. pooled: the same before the tanh layer that some models have.
logits: output of the head. patches: tokens before the pooling, after the final norm, in float16."""

ExtractorPrecision = Precision | Literal["float64"]

_VERSION = 1
"""Increase when the same model, images and settings result in other features than before."""


@dataclass(frozen=True)
class Features:
    """Features of a split, in the order of its images."""

    values: np.ndarray
    """(n, d) float32, or float64 if the model computed in float64; (n, patches, d) float16."""
    labels: np.ndarray
    """(n,) class indices, or (n, k) multi-hot."""
    indices: np.ndarray
    """(n,) indices into the split, without skipped images."""
    cached: bool
    seconds: float


def device_of(accelerator: object) -> str:
    """The device of an Extractor beside a Trainer with this accelerator: a GPU, if there is one."""
    return "cuda" if torch.cuda.is_available() and accelerator != "cpu" else "cpu"


class Extractor:
    """Computes features by one model, which it sets to evaluation mode and to `precision`, or by
    an engine, which has its own precision."""

    def __init__(
        self,
        model: "Model | Engine",
        layer: Layer,
        *,
        precision: ExtractorPrecision = "float32",
        device: str = "cpu",
        cache: Path | None = None,
    ) -> None:
        self.device = device
        self.cache = cache
        self.source: dict[str, Any] = {}
        if isinstance(model, Engine):
            model.check_device(device)
            if layer == "logits" and "logits" not in model.description.outputs:
                raise _without_head()
            self.layer: Layer = "logits" if layer == "logits" else "pre_logits"
            self.precision, self.engine = model.precision, model.name
            if cache is not None:
                self.source = {"engine": model.name, "weights": model.identity}
            self.model = model
            return
        self.layer = found_layer(model.config, layer)
        self.precision, self.engine = precision, "torch"
        if cache is not None:
            weights = fingerprint(model.state_dict())
            self.source = {"weights": weights, "model": model.config.to_dict()}
        self.model = model.eval().to(device, getattr(torch, precision))

    def __call__(self, data: "ImageData", split: SplitName) -> Features:
        """Features of a split, preprocessed with `data.preprocess`.

        Raises UserError for non-finite features, for no readable image and, unless `data` skips it,
        an unreadable one.
        """
        start = time.monotonic()
        images, file, key, stored = data.image_set(split), Path(), "", None
        if self.cache is not None:
            key = self._key(data, images)
            file = self.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
            stored = _read(file, key)
        values, indices = stored or self._compute(data, split)
        if self.cache is not None and stored is None:
            _write(file, key, values, indices)
        return Features(
            values=values.numpy(),
            labels=images.labels[indices.numpy()],
            indices=indices.numpy(),
            cached=stored is not None,
            seconds=time.monotonic() - start,
        )

    def _key(self, data: "ImageData", images: ImageSet) -> str:
        return json.dumps(
            {
                "version": _VERSION,
                "torch": torch.__version__,
                **self.source,
                "layer": self.layer,
                "precision": self.precision,
                "images": images_digest(images),
                "preprocess": data.preprocess.to_dict(),
                "on_error": data.loading.on_error,
            },
            sort_keys=True,
        )

    def _compute(self, data: "ImageData", split: SplitName) -> tuple[Tensor, Tensor]:
        """Features (n, d) and indices (n,), on the CPU."""
        total = data.expected_images(split)
        values, places, done = torch.empty(0), torch.empty(total, dtype=torch.int64), 0
        with Meter(f"features of {split}", total, "img") as meter:
            for images, _, indices in data.evaluation_loader(split):
                batch = slice(done, done + len(indices))
                done = batch.stop
                meter.advance(len(indices))
                if not len(indices):  # a batch of unreadable images
                    continue
                rows = self.rows(images, data.preprocess, split)
                if not len(values):
                    exact = torch.float32 if rows.dtype == torch.bfloat16 else rows.dtype
                    values = torch.empty(total, *rows.shape[1:], dtype=exact)
                values[batch], places[batch] = rows.cpu(), indices
        if done + data.skipped_images(split) != total:
            raise RuntimeError(f"{done} of {total} images of {split} were seen")
        if not done:
            raise UserError(f"none of the {total:,} images of {split} could be read")
        return values[:done].contiguous(), places[:done].contiguous()

    @torch.inference_mode()
    def rows(self, images: Tensor, preprocess: Preprocess, name: str) -> Tensor:
        """Features `b d` of images `b c h w` from the loader. UserError, with the `name` of the
        images, unless they are finite."""
        with _whole_float32():
            rows = self._rows(images, preprocess)
        if not rows.isfinite().all():
            raise UserError(
                f"features of {name} are not finite numbers in {self.precision}: the weights are "
                "damaged, or the precision is too low"
            )
        return rows

    def _rows(self, images: Tensor, preprocess: Preprocess) -> Tensor:
        if isinstance(self.model, Engine):
            return self.model.tensors(images)["logits" if self.layer == "logits" else "features"]
        pixels = preprocess.normalize(images.to(self.device)).to(getattr(torch, self.precision))
        if self.layer == "logits":
            return self.model(pixels)
        model: Any = self.model
        tokens = model.features(pixels)
        if self.layer == "patches":
            return tokens[:, model.num_prefix_tokens :].half()
        pooled = model.pool(tokens)
        return model.pre_logits(pooled) if self.layer == "pre_logits" else pooled


def found_layer(config: ModelConfig, layer: Layer) -> Layer:
    """The layer under one name: without the tanh layer, pre_logits is pooled. UserError for logits
    of a model without a head, and for patches of a ResNet."""
    if layer == "patches" and not isinstance(config, ViTConfig):
        raise UserError("a ResNet has no patches to attend to; name a ViT, or take --kind logistic")
    if layer == "logits" and not config.num_classes:
        raise _without_head()
    tanh = isinstance(config, ViTConfig) and config.representation_size is not None
    return "pooled" if layer == "pre_logits" and not tanh else layer


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the singular values of features `n d` as shares of their sum (Roy and
    Vetterli, 2007); 0 unless all are finite."""
    if not features.isfinite().all():
        return 0.0
    values = torch.linalg.svdvals(features.double())
    return float(torch.special.entr(values / values.sum().clamp(min=1e-300)).sum().exp())


def _without_head() -> UserError:
    return UserError("the model has no head, so it gives no logits; use one with classes")


@contextmanager
def _whole_float32() -> Iterator[None]:
    """Disables cuDNN's default TF32 convolutions, which round the patch embedding to ten bits."""
    convolution: Any = torch.backends.cudnn.conv  # pyright: ignore
    before = convolution.fp32_precision
    convolution.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolution.fp32_precision = before


def _read(file: Path, key: str) -> tuple[Tensor, Tensor] | None:
    """Values and indices; None if the file is missing or damaged."""
    if not file.is_file():
        return None
    try:
        tensors, of = read_sealed(file)
        values, indices = tensors["values"], tensors["indices"]
        if of == key and indices.shape == values.shape[:1]:
            return values, indices
    except (KeyError, ValueError):
        pass
    note(f"{file} is damaged; recomputing its features")
    return None


def _write(file: Path, key: str, values: Tensor, indices: Tensor) -> None:
    try:
        write_sealed(file, {"values": values, "indices": indices}, key)
    except OSError as error:  # a full disk must not discard the result
        note(f"the features could not be cached ({error.strerror}: {file})")
