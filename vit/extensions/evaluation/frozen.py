"""A frozen model, its images, and a data set on which its features are measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vit.console import note, say
from vit.data.module import ImageData
from vit.data.settings import Loading, Splitting
from vit.data.sources import SplitName
from vit.errors import UserError
from vit.extensions.backbones.image_transform import recorded_preprocess
from vit.extensions.evaluation.features import (
    Extractor,
    Features,
    Layer,
    found_layer,
)
from vit.extensions.serving.engines import Engine, in_openvino, open_engine
from vit.inference.runtimes import Precision, is_export
from vit.models.zoo import Model
from vit.preprocessing import Preprocess, Resize
from vit.weights.pretrained import load_pretrained
from vit.weights.report import print_report


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Preprocessing and loading of images; None is the model's own preprocessing."""

    image_size: tuple[int, int] | None = None
    resize: Resize | None = None
    crop_fraction: float | None = None
    batch_size: int = 64
    num_workers: int | None = None
    on_error: Literal["error", "skip"] = "error"


@dataclass(frozen=True)
class Frozen:
    """A model's preprocessing and the extractor of its features."""

    num_classes: int
    classes: list[str] | None
    preprocess: Preprocess
    extractor: Extractor
    reading: Reading

    @classmethod
    def load(
        cls,
        weights: str,
        layer: Layer,
        reading: Reading,
        *,
        engine: str = "torch",
        precision: Any = "float32",
        device: str = "cpu",
        cache: Path | None = None,
    ) -> "Frozen":
        """The model in `weights`, which `engine` computes unless it is a file of `vit export`; the
        other arguments as for Extractor."""
        if layer == "patches" and (engine != "torch" or is_export(weights)):
            raise UserError("patches are computed by PyTorch: give weights, and no other --engine")
        if is_export(weights):
            source: Model | Engine = open_engine(weights, precision, engine)
            classes, preprocess = source.description.classes, source.description.preprocess
            num_classes = len(classes or ())
            if reading.image_size not in (None, preprocess.image_size):
                size = "{} x {}".format(*preprocess.image_size)
                raise UserError(f"{weights} takes images of {size} pixels only; export another")
        else:
            source, report = load_pretrained(weights, image_size=reading.image_size)
            print_report(report)
            classes, preprocess = report.classes, recorded_preprocess(source)
            num_classes = source.config.num_classes
            if engine == "openvino":
                source = _in_openvino(source, layer, preprocess, precision)
        changes = {"resize": reading.resize, "crop_fraction": reading.crop_fraction}
        preprocess = preprocess.changed(**{k: v for k, v in changes.items() if v is not None})
        extractor = Extractor(source, layer, precision=precision, device=device, cache=cache)
        return cls(num_classes, classes, preprocess, extractor, reading)

    @property
    def solver_device(self) -> str:
        """The device of float64, which Apple's GPUs do not have."""
        device = self.extractor.device
        return "cpu" if device.startswith("mps") else device

    def images(self, *, val_fraction: float = 0.1, **source: Any) -> ImageData:
        """Images of a source (arguments of ImageData), preprocessed for the model."""
        reading = self.reading
        data = ImageData(
            **source,
            channels=self.preprocess.channels,
            image_size=self.preprocess.image_size,
            batch_size=reading.batch_size,
            splits=Splitting(val_fraction=val_fraction),
            loading=Loading(num_workers=reading.num_workers, on_error=reading.on_error),
        )
        data.preprocess, data.skip_option = self.preprocess, "--on_error skip"
        return data

    def about(self) -> dict[str, Any]:
        """The part of a result that describes the model."""
        return {
            "image_size": list(self.preprocess.image_size),
            "engine": self.extractor.engine,
            "precision": self.extractor.precision,
            "features": self.extractor.layer,
        }


def _in_openvino(
    model: Model, layer: Layer, preprocess: Preprocess, precision: Precision
) -> Engine:
    computed = found_layer(model.config, layer)
    if computed not in ("logits", found_layer(model.config, "pre_logits")):
        raise UserError(
            "these features are from before the model's tanh layer, and OpenVINO's graph has those "
            "after it: leave --engine openvino out"
        )
    return in_openvino(model, preprocess, precision)


@dataclass(frozen=True)
class Bench:
    """A frozen model, and a data set on which its features are measured."""

    frozen: Frozen
    data: ImageData
    name: str
    split: SplitName
    """The split of the accuracy: test, or val where there is no test."""

    @classmethod
    def open(cls, frozen: Frozen, name: str, **source: Any) -> "Bench":
        """Opens a source (arguments of ImageData), of which val is not cut from train."""
        data = frozen.images(val_fraction=0.0, **source)
        splits = data.splits
        for text in splits.notes:
            note(text)
        if splits.multilabel:
            raise UserError(f"{name} has several labels per image; one is needed here")
        if splits.test is None and splits.val is None:
            raise UserError(
                f"{name} has neither test nor val images, and too few to cut some from train; add "
                "images or a test folder"
            )
        split: SplitName = "val" if splits.test is None else "test"
        say(f"{name}: {data.summary()}; measured on {split}")
        return cls(frozen, data, name, split)

    def features(self, split: SplitName) -> Features:
        """Features of a split, with a line on stderr."""
        features = self.frozen.extractor(self.data, split)
        how = "from the cache"
        if not features.cached:
            how = f"computed in {features.seconds:.1f} s by {self.frozen.extractor.engine}"
        count, *shape = features.values.shape
        left_out = len(self.data.image_set(split)) - count
        skipped = f", {left_out} unreadable images left out" if left_out else ""
        say(f"{split}: {count:,} images, {' x '.join(map(str, shape))} features, {how}{skipped}")
        return features

    def about(self, train: int, test: int) -> dict[str, Any]:
        """The part of a result that describes model and data."""
        return {
            **self.frozen.about(),
            "data": self.name,
            "classes": self.data.num_classes,
            "train_images": train,
            "split": self.split,
            "test_images": test,
        }
