"""What the commands on frozen features share: a model, images as it wants them, and features."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.arguments import chosen_device
from vit.cli.messages import OneLineParser
from vit.cli.run_directory import find_checkpoint
from vit.console import note, say
from vit.errors import UserError
from vit.transfer.plan import parse_sources
from vit.writing import writable

if TYPE_CHECKING:
    from vit.data.module import ImageData
    from vit.data.preprocess import Preprocess
    from vit.data.sources import SplitName
    from vit.evaluation.features import Extractor, Features, Layer
    from vit.models.zoo import Model


def add_model_arguments(parser: OneLineParser) -> None:
    """MODEL, how images are brought to it, and where its features are kept."""
    parser.add_argument("model", help="a run, a model directory, a weights file or a hub address")
    images = parser.add_argument_group("images (default: as the model was trained)")
    images.add_argument(
        "--image-size", type=int, nargs="+", metavar="N", help="pixels: one side, or height width"
    )
    images.add_argument("--resize", choices=("crop", "squash"), help="keep the aspect, or stretch")
    images.add_argument(
        "--crop-fraction", type=float, metavar="X", help="side of the crop over the resized side"
    )
    images.add_argument("--batch-size", type=int, default=64, metavar="N", help="default 64")
    images.add_argument("--num-workers", type=int, metavar="N", help="processes that read images")
    images.add_argument(
        "--on-error",
        choices=("error", "skip"),
        default="error",
        help="for unreadable images (default error)",
    )
    machine = parser.add_argument_group("computation")
    machine.add_argument("--device", help="such as cpu or cuda (default: the best)")
    machine.add_argument(
        "--precision",
        choices=("float32", "float64", "bfloat16"),
        default="float32",
        help="of the model (default float32)",
    )
    machine.add_argument(
        "--cache",
        metavar="DIR",
        help="where features are kept (default features in the cache folder)",
    )
    machine.add_argument("--no-cache", action="store_true", help="compute them, and keep nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def bench_parser(command: str, description: str) -> OneLineParser:
    """Parser of `vit COMMAND MODEL --data X`: a classifier is trained on features and tested."""
    parser = OneLineParser(
        prog=f"vit {command}",
        usage=f"vit {command} MODEL --data X [OPTIONS]",
        description=description,
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--data",
        required=True,
        metavar="X",
        help="a data set by name, or a folder, CSV or Parquet file",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where downloads go")
    return parser


def usual(numbers: tuple[int, ...], most: int, reason: str) -> list[int]:
    """Those of the usual numbers up to `most`, at least 1; notes which are left out."""
    fitting = [number for number in numbers if number <= most]
    if len(fitting) < len(numbers):
        left_out = ", ".join(str(number) for number in numbers if number > most)
        note(f"{reason} {left_out}")
    return fitting or [1]


@dataclass(frozen=True)
class Frozen:
    """A model that is only looked at."""

    model: "Model"
    classes: list[str] | None
    preprocess: "Preprocess"
    device: str
    extractor: "Extractor"

    @property
    def solver_device(self) -> str:
        """Where float64 is computed; Apple's GPUs do not have it."""
        return "cpu" if self.device.startswith("mps") else self.device

    def about(self, options: Namespace) -> dict[str, Any]:
        """For the result: which model, and how it was used."""
        return {
            "model": options.model,
            "image_size": list(self.preprocess.image_size),
            "precision": options.precision,
            "features": self.extractor.layer,
        }


def load_frozen(options: Namespace, layer: "Layer") -> Frozen:
    """MODEL with its weights and its preprocessing, which options may change."""
    from dataclasses import replace

    from vit.cache import cache_directory
    from vit.checkpoints.pretrained import load_pretrained
    from vit.checkpoints.report import print_report
    from vit.data.module import InputFormat
    from vit.data.preprocess import Preprocess, channels_of
    from vit.evaluation.features import Extractor

    size = _image_size(options.image_size)
    model, report = load_pretrained(weights_of(options.model), image_size=size)
    print_report(report)
    if report.preprocess is not None:
        preprocess = Preprocess.from_dict(report.preprocess)
    else:
        preprocess = InputFormat().preprocess(model.config.size, channels_of(model.config))
        note("the file does not say how images are prepared: [-1, 1]")
    changes = {"resize": options.resize, "crop_fraction": options.crop_fraction}
    preprocess = replace(preprocess, **{k: v for k, v in changes.items() if v is not None})
    cache = None
    if options.cache is not None and not options.no_cache:
        cache = writable(Path(options.cache).expanduser(), "--cache")
    elif not options.no_cache:
        cache = cache_directory() / "features"
    with chosen_device(options.device) as device:
        extractor = Extractor(model, layer, precision=options.precision, device=device, cache=cache)
    return Frozen(model, report.classes, preprocess, device, extractor)


def _image_size(given: Sequence[int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    if len(given) > 2 or min(given) < 1:
        shown = " ".join(map(str, given))
        raise UserError(f"--image-size {shown}: give one side in pixels, or height and width")
    return given[0], given[-1]


def weights_of(model: str) -> str:
    """The best checkpoint of a run that has not ended; else what was given."""
    folder = Path(model).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "model" / "config.json").is_file():
        return str(find_checkpoint(folder))
    return str(folder) if folder.exists() else model


def image_data(
    options: Namespace, preprocess: "Preprocess", *, val_fraction: float = 0.1, **source: Any
) -> "ImageData":
    """Images of a source (arguments of ImageData), prepared as the model wants them."""
    from vit.data.module import ImageData
    from vit.data.options import Loading, Splitting

    data = ImageData(
        **source,
        channels=preprocess.channels,
        image_size=preprocess.image_size,
        batch_size=options.batch_size,
        splits=Splitting(val_fraction=val_fraction),
        loading=Loading(num_workers=options.num_workers, on_error=options.on_error),
    )
    data.preprocess = preprocess
    return data


@dataclass(frozen=True)
class Bench:
    """A frozen model, and a data set to try its features on."""

    frozen: Frozen
    data: "ImageData"
    name: str
    split: "SplitName"
    """Where accuracy is measured: test, or val where there is no test."""

    def features(self, split: "SplitName") -> "Features":
        """Features of a split; prints on stderr whether they came from the cache."""
        features = self.frozen.extractor(self.data, split)
        how = "from the cache" if features.cached else f"computed in {features.seconds:.1f} s"
        count, width = features.values.shape
        left_out = len(self.data.image_set(split)) - count
        skipped = f", {left_out} unreadable images left out" if left_out else ""
        say(f"{split}: {count:,} images, {width} features, {how}{skipped}")
        return features

    def about(self, options: Namespace, train: int, test: int) -> dict[str, Any]:
        """The head of the result: what was measured on what."""
        return {
            **self.frozen.about(options),
            "data": self.name,
            "classes": self.data.num_classes,
            "train_images": train,
            "split": self.split,
            "test_images": test,
        }


def open_bench(options: Namespace, layer: "Layer") -> Bench:
    """The model and the images of --data. No part of train is held out as val."""
    sources = parse_sources(options.data)
    if len(sources) != 1:
        raise UserError(f"--data {options.data}: give one data set")
    [source] = sources
    where: dict[str, Any] = {"dataset": source.name} if source.root is None else {}
    frozen = load_frozen(options, layer)
    data = image_data(
        options,
        frozen.preprocess,
        root=source.root,
        data_dir=options.data_dir,
        val_fraction=0.0,
        **where,
    )
    splits = data.splits
    for text in splits.notes:
        note(text)
    if splits.multilabel:
        raise UserError(f"{source.name} has several labels per image; one is needed here")
    if splits.test is None and splits.val is None:
        raise UserError(
            f"{source.name} has neither test nor val images, and too few to cut some from train; "
            "add images or a test folder"
        )
    split: SplitName = "val" if splits.test is None else "test"
    say(f"{source.name}: {data.summary()}; measured on {split}")
    return Bench(frozen, data, source.name, split)
