"""`vit validate`, `vit test` and `vit predict`: a run on one of its splits, or on other images."""

import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vit.cli.arguments import OneLineParser, add_spreadsheet
from vit.console import is_first_process, say, show
from vit.errors import UserError
from vit.runs.short_names import Words
from vit.tables import lines, resolve, rows
from vit.writing import writable

if TYPE_CHECKING:  # heavy: imports lightning
    import numpy as np

    from vit.runs.evaluate import Subject
    from vit.runs.options import Module
    from vit.runs.predictions import Predictions

TOP = 5
"""Classes of an image in the JSON."""

EPILOG = """\
RUN is a run directory: its data, class names and best weights are used.

The options of `vit fit` for the data and the Trainer work too, such as --data.batch_size or
--trainer.devices:
  --data.root PATH  evaluate other images: a folder per class, named as in the run"""


def validate(args: list[str]) -> int:
    """Evaluates a run on its validation images."""
    return _run(_parser("validate", "Evaluates a run on its validation images.", "val"), args)


def test(args: list[str]) -> int:
    """Evaluates a run on its test images, or compares two runs."""
    what = "Evaluates a run on its test images, or compares two runs on the same images."
    parser = _parser("test", what, None)
    parser.usage = "vit test RUN [OTHER] [--split SPLIT] [--json] [OPTIONS]"
    parser.add_argument("other", metavar="OTHER", nargs="?", help="a second run to compare with")
    return _run(parser, args)


def predict(args: list[str]) -> int:
    """Writes a run's predictions for a split."""
    what = "Writes the five most probable classes of every image of a split to a CSV file."
    parser = _parser("predict", what, None)
    parser.add_argument("--out", metavar="FILE", help="default: predictions_SPLIT.csv in RUN")
    add_spreadsheet(parser.add_argument)
    return _run(parser, args)


def _parser(command: str, what: str, split: str | None) -> OneLineParser:
    usage = f"vit {command} RUN [--split SPLIT] [--json] [OPTIONS]"
    parser = OneLineParser(prog=f"vit {command}", usage=usage, description=what, epilog=EPILOG)
    parser.set_defaults(command=command, out=None, other=None)
    parser.add_argument("run", metavar="RUN", help="a run directory")
    default = split or "test, or val if there are no test images"
    names = ("train", "val", "test")
    parser.add_argument("--split", choices=names, default=split, help=f"default: {default}")
    for name, text in lines("subjects").items():
        parser.add_argument(f"--{name}", metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser


def _run(parser: OneLineParser, args: list[str]) -> int:
    # argparse would take the values of `vit fit`'s options for RUN or OTHER.
    dotted = re.compile(r"--(data|trainer)[.=]").match
    words = Words(args).written
    options = parser.parse_args([word for word in words if not dotted(word)])
    of_fit = [word for word in words if dotted(word)]
    folder = Path(options.run).expanduser()
    if options.other is not None:
        return _compare(options, folder, of_fit)
    predicting = options.command == "predict"
    out = None if options.out is None else Path(options.out).expanduser()
    if out is not None:
        writable(out.parent, "--out")

    from vit.runs.evaluate import Subject

    make: Callable[..., Subject] = Subject
    for name, file in _files(options).items():
        make = partial(resolve(rows("subjects")[name]), Path(file).expanduser())
    subject = make(folder, options.split, of_fit, predicting=predicting)
    model, metrics, predictions = subject.evaluate()
    if predicting and out is None:
        out = folder / f"predictions_{subject.split}.csv"
    if is_first_process():
        _show(options, subject, model, metrics, predictions, out)
    return 0


def _files(options: Namespace) -> dict[str, str]:
    """Option of a row of `subjects` -> its file, for the options that are set."""
    return {name: file for name in rows("subjects") if (file := vars(options)[name]) is not None}


class Comparison(Protocol):
    """A row of the table `comparisons`: the output of `vit test RUN OTHER`."""

    def __call__(self, options: Namespace, first: Path, of_fit: list[str], /) -> int:
        """Prints the comparison; returns the exit status. `of_fit`: options of `vit fit`."""
        ...


class Detail(Protocol):
    """A row of the table `details`: results beside the metrics for runs with several labels per
    image; its name is a key in the JSON of `vit test`."""

    def __call__(
        self, classes: list[str], predictions: "Predictions", thresholds: "np.ndarray | None", /
    ) -> tuple[object, Iterable[str]]:
        """Returns JSON types, and lines for people; `thresholds` are `k`."""
        ...


def _compare(options: Namespace, first: Path, of_fit: list[str]) -> int:
    for name in _files(options):
        raise UserError(f"--{name} is for one run; leave it or the second run out")
    comparisons: list[Comparison] = [resolve(row) for row in rows("comparisons").values()]
    return max(compare(options, first, of_fit) for compare in comparisons)


def _show(
    options: Namespace,
    subject: "Subject",
    model: "Module",
    metrics: dict[str, float],
    predictions: "Predictions | None",
    out: Path | None,
) -> None:
    from vit.runs.finish import headline
    from vit.runs.predictions import write_csv
    from vit.runs.scoring import thresholds_of

    classes, thresholds = subject.data.classes, thresholds_of(model)
    content: dict[str, object] = dict(metrics)
    texts = [headline(model, subject.split, metrics, predictions)]
    texts += [f"{name:{max(map(len, metrics))}} {value:.4f}" for name, value in metrics.items()]
    if subject.engine_name is not None:
        content["engine"] = subject.engine_name
        texts.insert(0, f"computed by {subject.engine_name}")
    if predictions is not None and out is not None:
        write_csv(out, classes, predictions, thresholds=thresholds, spreadsheet=options.spreadsheet)
        say(f"wrote {out}")
        content["predictions"] = _objects(predictions, classes)
    elif predictions is not None and predictions.multilabel:
        for name, row in rows("details").items():
            detail: Detail = resolve(row)
            content[name], more = detail(classes, predictions, thresholds)
            texts += ["", *more]
    if options.json:
        print(json.dumps(content, indent=2))
    else:
        show("\n".join(texts))


def _objects(predictions: "Predictions", classes: list[str]) -> list[dict[str, object]]:
    """An object per image: its name, its true classes, and the most probable ones."""
    objects = []
    for row, (index, name) in enumerate(zip(predictions.indices, predictions.names, strict=True)):
        best = predictions.top_classes[row, :TOP], predictions.top_probabilities[row, :TOP]
        pairs = zip(*(values.tolist() for values in best), strict=True)
        top = [{"class": classes[k], "probability": probability} for k, probability in pairs]
        label = [classes[k] for k in predictions.classes_of(row)]
        objects.append({"index": int(index), "image": name, "label": label, "top": top})
    return objects
