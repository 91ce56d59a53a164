"""`vit selftrain`: students that learn unlabelled images by a teacher's answers (Noisy Student)."""

import json
from pathlib import Path

from vit.cli.arguments import OneLineParser, whole_number
from vit.console import say
from vit.extensions.transfer.cli_trainings import trainings

DESCRIPTION = """\
A teacher labels unlabelled images. A student is trained on them and on the labelled images, with
the noise of RECIPE, and teaches the next student (Noisy Student, arXiv:1911.04252). Prints and
writes a row for each. If interrupted, the same command continues and trains nothing twice. Other
options are those of `vit fit`. Protocol, files and an experiment: docs/self_training.md."""

EXAMPLE = """\
examples:
  vit selftrain -c cifar10/noisy_student --data labelled/ --unlabelled more/
  vit selftrain -c imagenet1k/vit_s16 --data labelled/ --unlabelled more/ --teacher runs/best \\
      --students vit_s16,vit_b16"""


def run(args: list[str]) -> int:
    """Trains the unfinished runs, and prints the table."""
    options, rest = _parser().parse_known_args(args)
    fields = vars(options)
    as_json, fields["out"] = fields.pop("json"), Path(options.out).expanduser()
    fields["students"] = [name for name in options.students.split(",") if name]
    names = ("ratio", "confidence", "per_class", "hard")
    fields["pseudo"] = {name: fields.pop(name) for name in names}
    from vit.extensions.transfer.selftrain import SelfTraining  # heavy: imports lightning

    with trainings("selftrain", args):
        rows = SelfTraining(arguments=rest, **fields).run()
    print(json.dumps(rows, indent=1) if as_json else _table(rows))
    say(f"also in {fields['out'] / 'selftrain.json'}; the last student: {rows[-1]['run']}")
    return 0


def _table(rows: list[dict[str, object]]) -> str:
    lines = [["model", "parameters", "images", "confidence, %", "val, %", "test, %"]]
    for row in rows:
        forms = {"parameters": ",", "images": ",", "confidence": ".2%", "val": ".2%", "test": ".2%"}
        cells = ["-" if row[n] is None else f"{row[n]:{form}}" for n, form in forms.items()]
        lines.append([str(row["model"]), *(cell.rstrip("%") for cell in cells)])
    return "\n".join("".join(f"{cell:>14}" for cell in line) for line in lines)


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="vit selftrain",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        usage="vit selftrain -c RECIPE --data LABELLED --unlabelled FOLDER [OPTIONS]",
    )
    add, number = parser.add_argument, {"type": float, "metavar": "X"}
    add("--unlabelled", required=True, metavar="FOLDER", help="images, also in its subfolders")
    add("--teacher", metavar="MODEL", help="a run or weights (default: trained first, with RECIPE)")
    add("--iterations", type=whole_number, default=3, metavar="N", help="students (default: 3)")
    add("--students", default="", metavar="A,B", help="architecture or recipe of each student")
    add("--ratio", default=3.0, **number, help="unlabelled images per labelled one (default: 3)")
    add("--confidence", default=0.3, **number, help="lowest probability of a label (default: 0.3)")
    text = "images of each class: the most confident, or repeated (default: all)"
    add("--per-class", type=whole_number, metavar="N", help=text)
    add("--hard", action="store_true", help="train on the teacher's class, not its probabilities")
    add("--out", default="runs/selftrain", metavar="DIR", help="default: runs/selftrain")
    add("--json", action="store_true", help="print the rows as JSON")
    return parser
