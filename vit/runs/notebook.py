"""`vit fit` as a function, for notebooks and scripts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit import signals
from vit.inference.classifier import Classifier, load

if TYPE_CHECKING:
    from vit.data.module import ImageData
    from vit.training.network_training import NetworkTraining


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    """Its directory: config.yaml, metrics.csv, checkpoints/, model/, summary.json, report.html."""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Content of summary.json: metrics, seconds, parameters, versions, hardware."""
        return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the best weights by name, such as "test/acc1"."""
        return self.summary["metrics"]

    def classifier(self) -> Classifier:
        """The trained model with class names and preprocessing, as `vit.load` gives it."""
        return load(self.path)


def fit(
    recipe: str | Path | Sequence[str | Path] | None = None,
    *,
    data: str | Path | Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Trains as `vit fit -c RECIPE --data.root DATA ...` does, and returns the finished run.

    Options have their names on the command line, as nested mappings or with dots:
    `vit.fit("finetune", data="photos/", model={"pretrained": "B_16.npz"}, run_dir="runs/a")`,
    `vit.fit("quickstart", **{"trainer.max_epochs": 3})`. Several recipes are merged in order.

    Raises UserError for a mistake, and vit.signals.Stopped, a SystemExit, after Ctrl-C;
    `vit.fit(run_dir=...)` then resumes the run.
    """
    from vit.runs.fit import fit as fit_by  # heavy: imports lightning
    from vit.runs.options import Options

    with signals.handled():
        run = fit_by(Options(_arguments(recipe, data, options)))
    print(run.closing)
    return Run(run.folder)


def from_recipe(
    recipe: str | Path | Sequence[str | Path],
    *,
    data: str | Path | Mapping[str, Any] | None = None,
    **options: Any,
) -> "tuple[NetworkTraining[Any, Any], ImageData]":
    """The LightningModule and the data module of `fit`, with its arguments, for your own loop."""
    from vit.runs.options import Options  # heavy: imports lightning

    options_of_run = Options(_arguments(recipe, data, options))
    images = options_of_run.build_data()
    return options_of_run.build_model(images), images


def _arguments(
    recipe: str | Path | Sequence[str | Path] | None,
    data: str | Path | Mapping[str, Any] | None,
    options: dict[str, Any],
) -> list[str]:
    from vit.runs.mistakes import flat  # heavy: imports lightning

    recipes = [recipe] if isinstance(recipe, str | Path) else list(recipe or ())
    arguments = [part for name in recipes for part in ("-c", str(name))]
    for name, value in flat({"data": data, **options} if data is not None else options):
        text = value if isinstance(value, str | Path) else json.dumps(value)  # JSON is YAML
        arguments.append(f"--{name}={text}")
    return arguments
