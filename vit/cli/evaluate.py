"""`vit validate`, `vit test`, `vit predict`: a run on one of its splits, or on new images."""

import argparse
import json
import sys
from pathlib import Path

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
    if not args or args[0] in ("-h", "--help"):
        more = "  --out FILE          where to write (default: predictions_SPLIT.csv in RUN)\n"
        print(
            HELP.format(
                command=command,
                what=WHAT[command],
                split=split,
                more=more if command == "predict" else "",
            )
        )
        return 0
    parser = argparse.ArgumentParser(prog=f"vit {command}", allow_abbrev=False)
    parser.add_argument("run")
    parser.add_argument("--split", choices=("train", "val", "test"), default=split)
    parser.add_argument("--json", action="store_true")
    if command == "predict":
        parser.add_argument("--out")
    options, rest = parser.parse_known_args(args)
    folder = Path(options.run)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not a run directory: it has no config.yaml")
    weights = folder / "model"
    if not (weights / "config.json").is_file():
        from vit.cli.run_directory import find_checkpoint

        weights = find_checkpoint(options.run)  # an unfinished run

    from vit.checkpoints.pretrained import inspect_pretrained
    from vit.cli.lightning_cli import TrainingCLI
    from vit.cli.results import headline, score
    from vit.cli.run_directory import is_first_process
    from vit.inspection.results import write_csv

    classes = inspect_pretrained(str(weights)).classes
    arguments = ["-c", str(folder / "config.yaml"), "--model.pretrained", str(weights), *rest]
    if classes is not None and any(arg.startswith("--data.root") for arg in rest):
        # Other images: labelled by the run's classes, however many of them are there.
        arguments += ["--data.classes", json.dumps(classes)]
    cli = TrainingCLI(arguments)
    cli.datamodule.image_set(options.split)  # an error before anything runs
    trainer = cli.build_trainer(None)
    metrics, predictions = score(trainer, cli.model, cli.datamodule, options.split)
    if not is_first_process():
        return 0
    if command == "predict":
        out = Path(options.out or folder / f"predictions_{options.split}.csv")
        write_csv(out, cli.datamodule.classes, predictions)
        print(f"wrote {out}", file=sys.stderr)
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        print(headline(options.split, metrics, predictions))
        for name, value in metrics.items():
            print(f"{name:16} {value:.4f}")
    return 0
