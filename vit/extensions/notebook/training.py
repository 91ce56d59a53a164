"""`vit fit` as a function, for notebooks and scripts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vit import signals
from vit.console import show
from vit.errors import UserError, did_you_mean_beside
from vit.extensions.reports.run_list import read_history
from vit.inference.answers import Prediction
from vit.inference.classifier import Classifier, load
from vit.preprocessing import check_choice
from vit.runs.records import read_summary
from vit.synonyms import Missing

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
    from PIL.Image import Image

    from vit.data.module import ImageData
    from vit.data.sources import SplitName
    from vit.extensions.notebook.program_options import ProgramOptions
    from vit.inference.classifier import Pictures
    from vit.training.network_training import NetworkTraining


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    """Its directory: config.yaml, metrics.csv, checkpoints/, model/, summary.json, report.html."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).expanduser())  # it may be text

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Content of summary.json: metrics, seconds, parameters, versions, hardware. UserError for
        a run that has none yet."""
        if not (summary := read_summary(self.path)):
            near = did_you_mean_beside(str(self.path))
            raise UserError(f"{self.path} has no summary.json of a finished run{near}")
        return summary

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the best weights by name, such as "test/acc1"."""
        return self.summary["metrics"]

    @property
    def history(self) -> list[dict[str, float]]:
        """Rows of metrics.csv, in order: a step, and the metrics that it has."""
        return read_history(self.path / "metrics.csv")

    @property
    def report(self) -> Path:
        """The page of the run, for a browser."""
        return self.path / "report.html"

    def test(
        self,
        data: str | Path | None = None,
        *,
        split: "SplitName | None" = None,
    ) -> dict[str, float]:
        """Metrics of the weights on a split, as `vit test` gives them: of the run's data, or of a
        folder or list with its classes. By default test, or val if there are no test images.

        A note says how many of the images the weights were trained on.
        """
        from vit.data.sources import SPLITS
        from vit.runs.evaluate import Subject  # heavy: imports lightning
        from vit.runs.short_names import Words

        if split is not None:
            check_choice("split", split, SPLITS)
        options = Words([] if data is None else ["--data", str(data)]).written
        with signals.handled():
            return Subject(self.path, split, options).evaluate()[1]

    def predict(self, images: "Pictures", top: int = 5) -> list[Prediction]:
        """The `top` classes of images, as `vit.load(path).predict` gives them."""
        return self.classifier().predict(images, top)

    def classifier(self) -> Classifier:
        """The trained model with class names and preprocessing, as `vit.load` gives it."""
        return load(self.path)

    if not TYPE_CHECKING:  # for type checkers such an attribute is an error

        def __getattr__(self, name: str) -> NoReturn:
            raise Missing("Run", name)


def fit(
    recipe: str | Path | Sequence[str | Path] | None = None,
    *,
    data: object = None,
    val: object = None,
    test: object = None,
    callbacks: "Sequence[Callback]" = (),
    augment: Callable[["Image"], object] | None = None,
    **options: object,
) -> Run:
    """Trains as `vit fit -c RECIPE --data.root DATA ...` does, and returns the finished run.

    Options have their names on the command line, as nested mappings or with dots:
    `vit.fit("finetune", data="photos/", model={"pretrained": "B_16.npz"}, run_dir="runs/a")`,
    `vit.fit("quickstart", **{"trainer.max_epochs": 3})`. Several recipes are merged in order.

    Args:
        recipe: Name or path of a recipe, or several; a folder is the `data`.
        data: A folder, a CSV file, options of the data as a mapping; or images as
            `vit.ImageData.of` takes them: a list of (path, label), a Dataset, a DatasetDict.
        val: Validation images, likewise. By default these and test are cut from `data`.
        test: Test images, likewise.
        callbacks: Lightning's, beside those of the recipe.
        augment: data.augment.extra as an object: RGB image -> image of the same size.
        options: Options of the run.

    The call with `run_dir` resumes a run. Such a run needs the objects of its call; `vit test RUN`
    needs other images (--data). Raises UserError for a mistake, and vit.signals.Stopped, a
    SystemExit, after Ctrl-C.
    """
    from vit.runs.fit import fit as fit_by  # heavy: imports lightning

    if data is None and isinstance(recipe, str | Path) and Path(recipe).is_dir():
        recipe, data = None, recipe  # as in `vit fit my_photos`
    with signals.handled():
        run, closing = fit_by(_options(recipe, data, val, test, callbacks, augment, **options))
    show(closing)
    return Run(run.folder)


def from_recipe(
    recipe: str | Path | Sequence[str | Path], *, data: Any = None, **options: Any
) -> "tuple[NetworkTraining[Any, Any], ImageData]":
    """The LightningModule and the data module of `fit`, with its arguments, for your own loop.

    UserError for callbacks, which are your Trainer's.
    """
    if options.get("callbacks"):
        raise UserError("callbacks: give them to your own Trainer")
    run = _options(recipe, data, **options)
    return run.build_model(run.data), run.data


def _options(
    recipe: str | Path | Sequence[str | Path] | None,
    data: Any,
    val: Any = None,
    test: Any = None,
    callbacks: "Sequence[Callback]" = (),
    augment: Callable[["Image"], Any] | None = None,
    **options: Any,
) -> "ProgramOptions":
    from vit.data.sources import SPLIT_WORDS  # heavy, as are these
    from vit.extensions.notebook.program_options import ProgramOptions
    from vit.runs.short_names import Words
    from vit.synonyms import in_our_words

    images, as_options = None, data is None or isinstance(data, str | Path)
    if isinstance(data, Mapping):
        as_options = not SPLIT_WORDS.keys() & data.keys()
    if not as_options or val is not None or test is not None:
        images = (data, val, test)
    elif data is not None:
        options = {"data": data, **options}
    objects = {"images": images, **_objects(callbacks, augment)}
    recipes = [recipe] if isinstance(recipe, str | Path) else list(recipe or ())
    arguments = [part for name in recipes for part in ("-c", str(name))] + _arguments(options)
    try:
        return ProgramOptions(Words(arguments), **objects)
    except UserError:  # perhaps by words of other packages
        if (ours := in_our_words(["fit", *arguments])) is None:
            raise
        return ProgramOptions(Words(ours[1:]), **objects)


def _objects(callbacks: Any, augment: Any) -> dict[str, Any]:
    """Objects of the caller, by their names. UserError for those that are none."""
    from lightning.pytorch.callbacks import Callback  # heavy

    if augment is not None and not callable(augment):
        kind = type(augment).__name__
        raise UserError(f"augment is a {kind}; give a function: RGB image -> RGB image")
    callbacks = [callbacks] if isinstance(callbacks, Callback) else callbacks
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(f"callbacks has a {type(callback).__name__}; give Lightning's")
    return {"callbacks": callbacks, "augment": augment}


def _arguments(options: dict[str, Any]) -> list[str]:
    """Options as on the command line. UserError for an object that is no text, list or number."""
    from vit.recipes import flat  # heavy

    arguments = []
    for name, value in flat(options):
        try:
            text = value if isinstance(value, str | Path) else json.dumps(value)  # JSON is YAML
        except TypeError as error:
            kind = type(value).__name__
            raise UserError(
                f"{name} is a {kind}; give options, such as model={{'name': 'vit_s16'}}, or train "
                "your own module by Lightning's Trainer with vit.ImageData"
            ) from error
        arguments.append(f"--{name}={text}")
    return arguments
