"""A trained model with class names and preprocessing, from paths, PIL images or arrays to names.

Imports only torch and Pillow, so that it runs without the packages for training.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.checkpoints import published
from vit.checkpoints.hub import fetch, is_address
from vit.checkpoints.native import WEIGHTS, load_native
from vit.checkpoints.pretrained import load_pretrained
from vit.data.decode import open_image
from vit.data.preprocess import Preprocess
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.matmul import pack
from vit.models.zoo import ModelConfig


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, best first."""

    classes: list[str]
    probabilities: list[float]


class Classifier:
    """A model in evaluation mode with its class names and preprocessing."""

    def __init__(
        self,
        model: nn.Module,
        classes: list[str],
        preprocess: Preprocess,
        *,
        multilabel: bool = False,
    ) -> None:
        self.model = model.eval()
        self.classes = classes
        self.preprocess = preprocess
        self.multilabel = multilabel

    def probabilities(self, images: Iterable[Any]) -> Tensor:
        """Probabilities `b k` for paths, PIL images or uint8 arrays (h w, or h w 3)."""
        batch = torch.stack([self.preprocess(open_image(image)) for image in images])
        parameter = next(self.model.parameters())
        batch = self.preprocess.normalize(batch.to(parameter.device)).to(parameter.dtype)
        with torch.inference_mode():
            logits = self.model(batch).float()
        return (logits.sigmoid() if self.multilabel else logits.softmax(-1)).cpu()

    def predict(self, images: Any, top: int = 5, *, batch_size: int = 32) -> list[Prediction]:
        """The `top` classes of each image. A single image needs no list."""
        if top < 1:
            raise UserError(f"top={top} must be at least 1")
        if not isinstance(images, list | tuple):
            images = [images]
        if len(images) > batch_size:
            pack(self.model)
        results = []
        for start in range(0, len(images), batch_size):
            scores = self.probabilities(images[start : start + batch_size])
            values, indices = scores.topk(min(top, len(self.classes)))
            for row, order in zip(values.tolist(), indices.tolist(), strict=True):
                results.append(Prediction([self.classes[i] for i in order], row))
        return results

    def to(self, device: str | torch.device) -> "Classifier":
        """Moves the model to a device."""
        self.model.to(device)
        return self


def load(path: str | Path) -> Classifier:
    """Loads the classifier of a run, a model directory or its model.safetensors, a name or address.

    A name is one of published weights (`vit models --weights`). An address is hf://org/repo of a
    model published by `push_to_hub`, or gs:// or https:// of its model.safetensors. Raises
    UserError for other weights, for weights without classes and for a damaged model.
    """
    row = published.named(path)
    if row is not None:
        if not row.outputs:
            raise _without_classes(row.name)
        model, report = load_pretrained(row.name)
        values, names, multilabel = report.preprocess, report.classes, False
    else:
        weights = fetch(str(path)) if is_address(path) else _model_directory(path)
        model, info = load_native(weights)
        values, names = info.preprocess, info.classes
        multilabel: bool = info.extra.get("multilabel", False)
    if values is None:
        raise UserError(f"{path} has no preprocessing in config.json; use vit.create_model")
    config: ModelConfig = model.config  # pyright: ignore[reportAssignmentType]
    if not config.num_classes:
        raise _without_classes(path)
    preprocess = Preprocess.from_dict(values)
    if config.in_channels != 3:
        raise UserError(f"{path} takes {config.in_channels} channels, but images have 3")
    if isinstance(config, ViTConfig) and any(
        side % config.patch_size for side in preprocess.image_size
    ):
        raise UserError(
            f"{path}: its config.json resizes images to {preprocess.image_size} pixels, which do "
            f"not divide into patches of {config.patch_size}"
        )
    classes = names or [str(i) for i in range(config.num_classes)]
    return Classifier(model, classes, preprocess, multilabel=multilabel)


def _without_classes(path: str | Path) -> UserError:
    return UserError(
        f"{path} is an encoder without classes; fine-tune it first: vit fit -c finetune "
        f"--data.root LABELLED --model.pretrained {shlex.quote(str(path))}"
    )


def _model_directory(path: str | Path) -> Path:
    """The model directory or file: `path`, or the one in a finished run."""
    folder = Path(path).expanduser()
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    if folder.is_file() or any((folder / name).is_file() for name in ("config.json", WEIGHTS)):
        return folder
    if (folder / "config.yaml").is_file():
        raise UserError(
            f"{path} is a run without a finished model; continue it: "
            f"vit fit --run_dir {shlex.quote(str(path))} --ckpt_path last"
        )
    raise UserError(f"{path} is neither a run nor a model directory: it has no config.json")
