"""`vit validate`, `vit test`, `vit predict`: a run on one of its splits, or on new images."""

import json
import shlex
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from vit.checkpoints.sealed import verify
from vit.cli.messages import OneLineParser
from vit.cli.processes import forget_routes, limit_threads_of, start, together
from vit.cli.run_directory import find_checkpoint
from vit.cli.scored_config import scored_config
from vit.console import is_first_process
from vit.errors import UserError
from vit.writing import writable
from vit.yaml_reader import read_options

# Classes of an image that are printed.
TOP = 5

DESCRIPTION = """\
{what}
RUN is a run directory: its configuration, class names and best weights are used."""

EPILOG = """\
and every option of `vit fit`, such as --data.batch_size or --trainer.devices:
  --data.root PATH  other images: a folder per class, named as the classes of the run"""


def validate(args: list[str]) -> int:
    """Scores a run on its validation images."""
    parser = _parser("validate", "Scores a run on its validation images.", "val")
    return _run(parser, args)


def test(args: list[str]) -> int:
    """Scores a run on its test images."""
    parser = _parser("test", "Scores a run on its test images.", "test")
    return _run(parser, args)


def predict(args: list[str]) -> int:
    """Writes a run's answers for a split."""
    what = "Writes the five most probable classes of every image of a split to a CSV file."
    parser = _parser("predict", what, "test", "figures and predictions")
    parser.add_argument("--out", metavar="FILE", help="default: predictions_SPLIT.csv in RUN")
    parser.add_argument(
        "--spreadsheet",
        action="store_true",
        help="put ' before names that a spreadsheet would run as formulas",
    )
    return _run(parser, args)


def _parser(command: str, what: str, split: str, printed: str = "figures") -> OneLineParser:
    parser = OneLineParser(
        prog=f"vit {command}",
        usage=f"vit {command} RUN [--split SPLIT] [--json] [OPTIONS]",
        description=DESCRIPTION.format(what=what),
        epilog=EPILOG,
    )
    parser.set_defaults(command=command, out=None)
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--split",
        choices=("train", "val", "test"),
        default=split,
        metavar="SPLIT",
        help=f"train, val or test (default: {split})",
    )
    parser.add_argument("--json", action="store_true", help=f"print the {printed} as JSON")
    return parser


def _run(parser: OneLineParser, args: list[str]) -> int:
    options, rest = parser.parse_known_args(args or ["--help"])
    try:
        with start():
            return _evaluate(Path(options.run).expanduser(), options, rest)
    finally:
        forget_routes()


def _evaluate(folder: Path, options: Namespace, rest: list[str]) -> int:
    from vit.cli.results import score

    cli = _built(folder, options, rest)
    images = cli.datamodule.image_set(options.split)  # an error before anything runs
    out = None
    if options.command == "predict":
        out = Path(options.out or folder / f"predictions_{options.split}.csv").expanduser()
        writable(out.parent, "--out")
    if options.split != "train" and not any(arg.startswith("--data.") for arg in rest):
        _warn_of_changes(folder, options.split, len(images))
    trainer = cli.build_trainer(None)
    limit_threads_of(cli)
    with together(trainer):
        metrics, predictions = score(trainer, cli.model, cli.datamodule, options.split)
    if is_first_process():
        _show(options, cli, metrics, predictions, out)
    return 0


def _built(folder: Path, options: Namespace, rest: list[str]) -> Any:
    """Data and model of an evaluation."""
    file = folder / "config.yaml"
    if not file.is_file():
        raise UserError(f"{folder} is not a run directory: it has no config.yaml")
    config = scored_config(read_options(file), file)
    unlabelled = config.get("task", "classification") != "classification"
    if options.command == "predict" and unlabelled:
        raise UserError(
            f"{folder} was trained without labels and names no classes; fit a head to it first: "
            f"vit fit -c probe --data.root LABELLED --model.pretrained {shlex.quote(str(folder))}"
        )
    weights = folder / "model"
    if not (weights / "config.json").is_file():
        weights = find_checkpoint(folder)  # an unfinished run

    import torch
    import yaml

    from vit.checkpoints.pretrained import inspect_pretrained
    from vit.cli.lightning_cli import TrainingCLI

    info = inspect_pretrained(str(weights))
    classes = info.classes
    # The weights know what they are; the recipe's changes to a named model are in them already.
    arguments = ["--model.pretrained", str(weights)]
    # Nothing is drawn for training; a run that once balanced twice can still be scored.
    arguments += ["--data.sampling.balanced", "false", "--data.global_batch", "null", *rest]
    # Other images: labelled by the run's classes, however many of them are there.
    others = any(arg.startswith("--data.root") for arg in rest) and (classes or unlabelled)
    with tempfile.TemporaryDirectory() as temporary:
        recipe = Path(temporary, "config.yaml")
        recipe.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        cli = TrainingCLI(
            ["-c", str(recipe), *arguments],
            classes=(classes or []) if others else None,
            multilabel=info.extra.get("multilabel", False),
        )
    if cli.datamodule.chooses_batch:
        raise UserError("data.batch_size=auto is for vit fit; give a number of images")
    if unlabelled:
        # What the encoder was trained with stays behind when model/ is written.
        checkpoint = find_checkpoint(folder)
        verify(checkpoint)
        whole = torch.load(checkpoint, map_location="cpu", weights_only=True)
        cli.model.load_state_dict(whole["state_dict"])
    return cli


def _show(
    options: Namespace,
    cli: Any,
    metrics: dict[str, float],
    predictions: Any,
    out: Path | None,
) -> None:
    from vit.cli.results import headline, thresholds_of
    from vit.reports.per_class import class_lines, class_table
    from vit.reports.results import write_csv

    classes, thresholds = cli.datamodule.classes, thresholds_of(cli.model)
    if out is not None:
        write_csv(out, classes, predictions, thresholds=thresholds, spreadsheet=options.spreadsheet)
        print(f"wrote {out}", file=sys.stderr)
    per_class = []
    if predictions is not None and predictions.multilabel and options.command != "predict":
        per_class = class_table(classes, predictions, thresholds)
    if options.json:
        content: dict[str, Any] = dict(metrics)
        if per_class:
            content["per_class"] = per_class
        if options.command == "predict":
            content["predictions"] = _listed(predictions, classes)
        print(json.dumps(content, indent=2))
    else:
        print(headline(options.split, metrics, predictions))
        for name, value in metrics.items():
            print(f"{name:16} {value:.4f}")
        for line in class_lines(per_class):
            print(line)


def _listed(predictions: Any, classes: list[str]) -> list[dict[str, Any]]:
    """An object an image: its name, its true class or classes, and the most probable ones."""
    rows = []
    for row, (index, name) in enumerate(zip(predictions.indices, predictions.names, strict=True)):
        ranked = zip(predictions.top_classes[row], predictions.top_probabilities[row], strict=True)
        rows.append(
            {
                "index": int(index),
                "image": name,
                "label": [classes[k] for k in predictions.classes_of(row)],
                "top": [
                    {"class": classes[int(k)], "probability": float(probability)}
                    for k, probability in list(ranked)[:TOP]
                ],
            }
        )
    return rows


def _warn_of_changes(run: Path, split: str, found: int) -> None:
    """Says so where the data is not what it was: a fresh cut may test on what was trained on."""
    from vit.reports.results import read_summary

    images = read_summary(run / "summary.json").get("images")
    before = images.get(split, 0) if isinstance(images, dict) else 0
    if isinstance(before, int) and before not in (0, found) and is_first_process():
        print(
            f"note: {split} had {before:,} images when the run was made and has {found:,} now; "
            "images that it was trained on may be among them",
            file=sys.stderr,
        )
