"""`vit validate`, `vit test`, `vit predict`: a run on one of its splits, or on new images."""

import json
import re
from argparse import Namespace
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vit.cli.arguments import OneLineParser, add_spreadsheet
from vit.console import is_first_process, say, show
from vit.errors import UserError
from vit.runs.short_names import Words
from vit.tables import lines, resolve, rows
from vit.writing import writable

# Classes of an image that are printed.
TOP = 5

DESCRIPTION = """\
{what}
RUN is a run directory: its data, class names and best weights are used."""

EPILOG = """\
and the options of `vit fit` for data and Trainer, such as --data.batch_size or --trainer.devices:
  --data.root PATH  other images: a folder per class, named as the classes of the run"""


def validate(args: list[str]) -> int:
    """Evaluates a run on its validation images."""
    parser = _parser("validate", "Evaluates a run on its validation images.", "val")
    return _run(parser, args)


def test(args: list[str]) -> int:
    """Evaluates a run on its test images."""
    what = "Evaluates a run on its test images; or compares two runs on the same images."
    parser = _parser("test", what, None)
    parser.usage = "vit test RUN [OTHER] [--split SPLIT] [--json] [OPTIONS]"
    parser.add_argument("other", metavar="OTHER", nargs="?", help="a run, compared with RUN")
    return _run(parser, args)


def predict(args: list[str]) -> int:
    """Writes a run's predictions for a split."""
    what = "Writes the five most probable classes of every image of a split to a CSV file."
    parser = _parser("predict", what, None, "figures and predictions")
    parser.add_argument("--out", metavar="FILE", help="default: predictions_SPLIT.csv in RUN")
    add_spreadsheet(parser.add_argument)
    return _run(parser, args)


def _parser(command: str, what: str, split: str | None, printed: str = "figures") -> OneLineParser:
    parser = OneLineParser(
        prog=f"vit {command}",
        usage=f"vit {command} RUN [--split SPLIT] [--json] [OPTIONS]",
        description=DESCRIPTION.format(what=what),
        epilog=EPILOG,
    )
    parser.set_defaults(command=command, out=None, other=None)
    parser.add_argument("run", metavar="RUN", help="a run directory")
    splits = ("train", "val", "test")
    parser.add_argument(
        "--split",
        choices=splits,
        default=split,
        help=f"default: {split or 'test; val without test images'}",
    )
    for name, text in lines("subjects").items():
        parser.add_argument(f"--{name}", metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help=f"print the {printed} as JSON")
    return parser


def _run(parser: OneLineParser, args: list[str]) -> int:
    # Those of `vit fit` apart, as argparse takes their values for RUN or OTHER.
    own: list[str] = []
    dotted: list[str] = []
    for word in Words(args).written:
        (dotted if re.match(r"--(data|trainer)[.=]", word) else own).append(word)
    options = parser.parse_args(own)
    folder = Path(options.run).expanduser()
    if options.other is not None:
        return _compare(options, folder, dotted)
    predicting = options.command == "predict"
    out = None if options.out is None else Path(options.out).expanduser()
    if out is not None:
        writable(out.parent, "--out")

    from vit.runs.evaluate import Subject  # heavy: imports lightning

    subject_of: Any = Subject
    for name, file in _files(options).items():
        subject_of = partial(resolve(rows("subjects")[name]), Path(file).expanduser())
    subject = subject_of(folder, options.split, dotted, predicting=predicting)
    result = subject.evaluate()
    if predicting and out is None:
        out = folder / f"predictions_{subject.split}.csv"
    if is_first_process():
        _show(options, subject, result, out)
    return 0


def _files(options: Namespace) -> dict[str, str]:
    """Option of a row of `subjects` -> its file, for those that are given."""
    return {name: file for name in rows("subjects") if (file := vars(options)[name]) is not None}


class Comparison(Protocol):
    """A row of the table `comparisons`: what `vit test RUN OTHER` says of two runs."""

    def __call__(self, options: Namespace, first: Path, rest: list[str], /) -> int:
        """Prints it; returns the exit status. `rest`: options of the data and the Trainer."""
        ...


class Detail(Protocol):
    """A row of the table `details`, under its name in the JSON of `vit test`: what is said of runs
    with several labels per image beside the metrics."""

    def __call__(
        self, classes: list[str], predictions: Any, thresholds: Any, /
    ) -> tuple[Any, Iterable[str]]:
        """In JSON types, and as lines for people, from Predictions and thresholds `k`."""
        ...


def _compare(options: Namespace, first: Path, rest: list[str]) -> int:
    for name in _files(options):
        raise UserError(f"--{name} is for one run; leave it or the second run out")
    comparisons: list[Comparison] = [resolve(row) for row in rows("comparisons").values()]
    return max(compare(options, first, rest) for compare in comparisons)


def _show(options: Namespace, subject: Any, result: Any, out: Path | None) -> None:
    from vit.runs.closing import headline
    from vit.runs.predictions import write_csv
    from vit.runs.scoring import thresholds_of

    model, metrics, predictions = result
    classes, thresholds = subject.data.classes, thresholds_of(model)
    if out is not None and predictions is not None:
        write_csv(out, classes, predictions, thresholds=thresholds, spreadsheet=options.spreadsheet)
        say(f"wrote {out}")
    details: dict[str, tuple[Any, Iterable[str]]] = {}
    if predictions is not None and predictions.multilabel and out is None:
        kinds: dict[str, Detail] = {name: resolve(row) for name, row in rows("details").items()}
        details = {name: kind(classes, predictions, thresholds) for name, kind in kinds.items()}
    if options.json:
        content: dict[str, Any] = dict(metrics)
        if subject.engine_name is not None:
            content["engine"] = subject.engine_name
        content |= {name: values for name, (values, _) in details.items()}
        if out is not None:
            content["predictions"] = _listed(predictions, classes)
        print(json.dumps(content, indent=2))
        return
    if subject.engine_name is not None:
        show(f"computed by {subject.engine_name}")
    show(headline(model, subject.split, metrics, predictions))
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        show(f"{name:{width}} {value:.4f}")
    for _, texts in details.values():
        show("\n".join(["", *texts]))


def _listed(predictions: Any, classes: list[str]) -> list[dict[str, Any]]:
    """An object per image: its name, its true class or classes, and the most probable ones."""
    rows = []
    for row, (index, name) in enumerate(zip(predictions.indices, predictions.names, strict=True)):
        best = predictions.top_classes[row, :TOP], predictions.top_probabilities[row, :TOP]
        top = [
            {"class": classes[int(k)], "probability": float(probability)}
            for k, probability in zip(*best, strict=True)
        ]
        label = [classes[k] for k in predictions.classes_of(row)]
        rows.append({"index": int(index), "image": name, "label": label, "top": top})
    return rows
