"""A run scored by its exported file: `vit test RUN --with FILE`.

Shapes: b images, c channels, h w pixels, k classes.
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vit.console import note
from vit.data.dataset import Batch
from vit.data.module import ImageData
from vit.data.sources import SplitName
from vit.errors import UserError
from vit.extensions.serving.engines import Engine
from vit.inference.runtimes import open_export
from vit.runs.evaluate import Subject
from vit.runs.predictions import THRESHOLD
from vit.runs.scoring import thresholds_of
from vit.training.image_classifier import ImageClassifier
from vit.weights.sealed import fingerprint

ON_CPU = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.precision=32-true"]


class Computed(ImageClassifier):
    """A run's classifier whose logits an engine computes."""

    engine: Engine

    def forward(self, images: Tensor) -> Tensor:
        """Logits `b k` of pixels `b c h w`."""
        return self.engine.tensors(images)["logits"]


class Pixels(ImageData):
    """The images of an exported file, which normalises them itself."""

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        return batch


class ExportedSubject(Subject):
    """A run whose logits an exported file computes, on the CPU in one process unless `args` say
    otherwise."""

    data_class = Pixels

    def __init__(
        self,
        file: Path,
        run: Path,
        split: SplitName | None,
        args: list[str],
        *,
        predicting: bool = False,
    ) -> None:
        """UserError for a file that is no classifier, and as of Subject."""
        self.classifier: Any = open_export(file)
        self.engine_name = self.classifier.engine.name
        # It names classes, which a run without labels does not have.
        super().__init__(run, split, [*ON_CPU, *args], predicting=True)

    def build_model(self) -> Computed:
        """The run's module with the file's logits. UserError for a file of another purpose."""
        self.module_class = Computed
        model: Any = super().build_model()
        for name in ("classes", "preprocess", "multilabel"):
            if getattr(self.classifier, name) != getattr(model, name):
                raise UserError(f"the exported file has other {name} than {self.run}")
        if self.classifier.temperature != (model.test_metrics.temperature or 1.0):
            raise UserError(f"the exported file has another temperature than {self.run}")
        chosen = thresholds_of(model)
        cuts = THRESHOLD if chosen is None else chosen
        if self.classifier.multilabel and not np.allclose(self.classifier.thresholds, cuts):
            raise UserError(f"the exported file has other thresholds than {self.run}")
        if self.classifier.tree != model.facts.tree:
            raise UserError(f"the exported file and {self.run} do not both have a tree of classes")
        if self.classifier.engine.description.sha256 != fingerprint(model.model.state_dict()):
            note(
                f"the file has other weights than {self.run}: which of these images they learned "
                "is not known"
            )
        model.engine = self.classifier.engine
        return model
