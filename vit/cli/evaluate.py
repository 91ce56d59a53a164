"""`vit validate`, `vit test`, `vit predict`: a run on one of its splits, or on new images."""

import json
import shlex
import sys
from pathlib import Path

from vit.cli.messages import OneLineParser
from vit.cli.run_directory import find_checkpoint, is_first_process, writable
from vit.cli.yaml_reader import read_options
from vit.errors import UserError

HELP = """\
usage: vit {command} RUN [--split SPLIT] [--json] [OPTIONS]

{what}
RUN is a run directory: its configuration, class names and best weights are used.

options:
  --split SPLIT       train, val or test (default: {split})
  --data.root PATH    other images: a folder a class, named as the classes of the run
  --json              print the figures as JSON
{more}  and every option of `vit fit`, such as --data.batch_size or --trainer.devices"""

WHAT = {
    "validate": "Scores a run on its validation images.",
    "test": "Scores a run on its test images.",
    "predict": "Writes the five most probable classes of every image of a split to a CSV file.",
}


def run(command: str, args: list[str]) -> int:
    """Scores a run; predict writes predictions."""
    split = "val" if command == "validate" else "test"
    if not args or "-h" in args or "--help" in args:
        more = (
            "  --out FILE          where to write (default: predictions_SPLIT.csv in RUN)\n"
            "  --spreadsheet       put ' before names that a spreadsheet would run as formulas\n"
        )
        print(
            HELP.format(
                command=command,
                what=WHAT[command],
                split=split,
                more=more if command == "predict" else "",
            )
        )
        return 0
    parser = OneLineParser(prog=f"vit {command}", add_help=False)
    parser.add_argument("run")
    parser.add_argument("--split", choices=("train", "val", "test"), default=split)
    parser.add_argument("--json", action="store_true")
    if command == "predict":
        parser.add_argument("--out")
        parser.add_argument("--spreadsheet", action="store_true")
    options, rest = parser.parse_known_args(args)
    folder = Path(options.run).expanduser()
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not a run directory: it has no config.yaml")
    if command == "predict":
        _check_classes(folder)
    weights = folder / "model"
    if not (weights / "config.json").is_file():
        weights = find_checkpoint(folder)  # an unfinished run

    import torch

    from vit.checkpoints.pretrained import inspect_pretrained
    from vit.cli.lightning_cli import TrainingCLI
    from vit.cli.results import headline, score
    from vit.inspection.results import write_csv

    classes = inspect_pretrained(str(weights)).classes
    arguments = ["-c", str(folder / "config.yaml"), "--model.pretrained", str(weights)]
    # The weights know what they are; the recipe's changes to a named model are in them already.
    arguments += ["--model.name", "null", "--model.architecture", "null"]
    # Nothing is drawn for training; a run that once balanced twice can still be scored.
    arguments += ["--data.sampling.balanced", "false", *rest]
    unlabelled = _task(folder) != "classification"
    if any(arg.startswith("--data.root") for arg in rest) and (classes or unlabelled):
        # Other images: labelled by the run's classes, however many of them are there.
        arguments += ["--data.classes", json.dumps(classes or [])]
    cli = TrainingCLI(arguments)
    if unlabelled:
        # What the encoder was trained with stays behind when model/ is written.
        whole = torch.load(find_checkpoint(folder), map_location="cpu", weights_only=True)
        cli.model.load_state_dict(whole["state_dict"])
    images = cli.datamodule.image_set(options.split)  # an error before anything runs
    out = None
    if command == "predict":
        out = Path(options.out or folder / f"predictions_{options.split}.csv").expanduser()
        writable(out.parent, "--out")
    if options.split != "train" and not any(arg.startswith("--data.") for arg in rest):
        _warn_of_changes(folder, options.split, len(images))
    trainer = cli.build_trainer(None)
    metrics, predictions = score(trainer, cli.model, cli.datamodule, options.split)
    if not is_first_process():
        return 0
    if out is not None:
        classes = cli.datamodule.classes
        write_csv(out, classes, predictions, spreadsheet=options.spreadsheet)
        print(f"wrote {out}", file=sys.stderr)
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        print(headline(options.split, metrics, predictions))
        for name, value in metrics.items():
            print(f"{name:16} {value:.4f}")
    return 0


def _task(run: Path) -> str:
    return read_options(run / "config.yaml").get("task", "classification")


def _check_classes(run: Path) -> None:
    """UserError for a run without classes."""
    if _task(run) != "classification":
        raise UserError(
            f"{run} was trained without labels and names no classes; fine-tune it first: "
            f"vit fit -c finetune --data.root LABELLED --model.pretrained {shlex.quote(str(run))}"
        )


def _warn_of_changes(run: Path, split: str, found: int) -> None:
    """Says so where the data is not what it was: a fresh cut may test on what was trained on."""
    file = run / "summary.json"
    before = json.loads(file.read_text(encoding="utf-8"))["images"][split] if file.is_file() else 0
    if before not in (0, found) and is_first_process():
        print(
            f"note: {split} had {before:,} images when the run was made and has {found:,} now; "
            "images that it was trained on may be among them",
            file=sys.stderr,
        )
