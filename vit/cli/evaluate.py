"""`vit validate`, `vit test`, `vit predict`: a run on one of its splits, or on new images."""

import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from vit.cli.arguments import OneLineParser
from vit.console import is_first_process, say
from vit.errors import UserError
from vit.runs.short_names import written_out
from vit.writing import writable

# Classes of an image that are printed.
TOP = 5

DESCRIPTION = """\
{what}
RUN is a run directory: its data, class names and best weights are used."""

EXPORTED = "of `vit export`, .onnx or .xml: it computes the logits in place of the run's weights"
EPILOG = """\
and the options of `vit fit` for data and Trainer, such as --data.batch_size or --trainer.devices:
  --data.root PATH  other images: a folder per class, named as the classes of the run"""


def validate(args: list[str]) -> int:
    """Evaluates a run on its validation images."""
    parser = _parser("validate", "Evaluates a run on its validation images.", "val")
    return _run(parser, args)


def test(args: list[str]) -> int:
    """Evaluates a run on its test images."""
    parser = _parser("test", "Evaluates a run on its test images.", None)
    return _run(parser, args)


def predict(args: list[str]) -> int:
    """Writes a run's predictions for a split."""
    what = "Writes the five most probable classes of every image of a split to a CSV file."
    parser = _parser("predict", what, None, "figures and predictions")
    parser.add_argument("--out", metavar="FILE", help="default: predictions_SPLIT.csv in RUN")
    parser.add_argument(
        "--spreadsheet",
        action="store_true",
        help="put ' before names that a spreadsheet would run as formulas",
    )
    return _run(parser, args)


def _parser(command: str, what: str, split: str | None, printed: str = "figures") -> OneLineParser:
    parser = OneLineParser(
        prog=f"vit {command}",
        usage=f"vit {command} RUN [--split SPLIT] [--json] [OPTIONS]",
        description=DESCRIPTION.format(what=what),
        epilog=EPILOG,
    )
    parser.set_defaults(command=command, out=None)
    parser.add_argument("run", metavar="RUN", help="a run directory")
    splits = ("train", "val", "test")
    parser.add_argument(
        "--split",
        choices=splits,
        default=split,
        help=f"default: {split or 'test; val without test images'}",
    )
    parser.add_argument("--with", dest="exported", metavar="FILE", help=EXPORTED)
    parser.add_argument("--json", action="store_true", help=f"print the {printed} as JSON")
    return parser


def _run(parser: OneLineParser, args: list[str]) -> int:
    words = written_out(args)
    for word in words:
        if word.startswith("--resume="):  # Lightning's --ckpt_path
            run = Path(word.partition("=")[2]).parent.parent
            raise UserError(f"the best weights of a run are scored: vit {parser.prog[4:]} {run}")
    # Apart, as argparse takes an unknown option with a blank in its value for RUN.
    dotted = [word for word in words if re.match(r"--[\w.]+\.\w+=", word)]
    options, rest = parser.parse_known_args([word for word in words if word not in dotted])
    rest += dotted
    folder = Path(options.run).expanduser()
    predicting = options.command == "predict"
    out = None if options.out is None else Path(options.out).expanduser()
    if out is not None:
        writable(out.parent, "--out")

    from vit.runs.evaluate import evaluate  # heavy: imports lightning

    exported = None if options.exported is None else Path(options.exported).expanduser()
    result = evaluate(folder, options.split, rest, predicting=predicting, exported=exported)
    if predicting and out is None:
        out = folder / f"predictions_{result.split}.csv"
    if is_first_process():
        _show(options, result, out)
    return 0


def _show(options: Namespace, result: Any, out: Path | None) -> None:
    from vit.reports.closing import headline
    from vit.reports.predictions import write_csv
    from vit.reports.scores import class_lines, class_scores, class_table
    from vit.runs.scoring import thresholds_of

    classes, thresholds = result.data.classes, thresholds_of(result.model)
    predictions, metrics = result.predictions, result.metrics
    if out is not None and predictions is not None:
        write_csv(out, classes, predictions, thresholds=thresholds, spreadsheet=options.spreadsheet)
        say(f"wrote {out}")
    per_class = []
    if predictions is not None and predictions.multilabel and out is None:
        per_class = class_table(classes, class_scores(predictions, len(classes), thresholds))
    if options.json:
        content: dict[str, Any] = dict(metrics)
        if result.engine is not None:
            content["engine"] = result.engine
        if per_class:
            content["per_class"] = per_class
        if out is not None:
            content["predictions"] = _listed(predictions, classes)
        print(json.dumps(content, indent=2))
        return
    if result.engine is not None:
        print(f"computed by {result.engine}")
    print(headline(result.split, metrics, predictions))
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        print(f"{name:{width}} {value:.4f}")
    if per_class:
        print("", *class_lines(per_class), sep="\n")


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
