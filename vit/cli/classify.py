"""`vit classify`: the most probable classes of images, printed or written to a file."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vit.cli.arguments import (
    OneLineParser,
    add_engine,
    add_spreadsheet,
    asked_device,
    chosen_device,
    pictures,
    whole_number,
)
from vit.console import Meter, say, show
from vit.errors import UserError, printable
from vit.tables import lines, resolve, rows

if TYPE_CHECKING:
    from vit.data.sources import PathList
    from vit.inference.answers import PredictOptions
    from vit.inference.classifier import Classifier

EPILOG = """\
examples:
  vit classify runs/my_photos-finetune photo.jpg more/*.jpg
  vit classify runs/my_photos-finetune holidays/ --out answers.csv
  vit classify CLIP photo.jpg --names "cat,dog,a red car"

If --out was interrupted, the same command continues after its last answer."""


def run(args: list[str]) -> int:
    """Prints or writes the most probable classes of every image."""
    options = _parser().parse_args(args)
    _check(options)
    file = None if options.out is None else _answer_file(options)
    paths = _paths(options, file, arrays=True)  # before the model is loaded
    from vit.inference.answers import PredictOptions
    from vit.inference.classifier import load

    numbers = {name: vars(options)[name] for name in rows("answers")}
    names = ("engine", "precision", "raw", *rows("texts"))
    asked = PredictOptions(top=options.top, numbers=numbers)
    classifier = load(options.model, **{name: vars(options)[name] for name in names})
    asked = asked.of(classifier)
    for view in [row for name, row in rows("views").items() if vars(options)[name]]:
        classifier = resolve(view)(classifier, asked)
    with chosen_device(asked_device(options)) as device:
        classifier.to(device)
    if classifier.runtime is not None:
        say(f"computed by {classifier.runtime}")
    if classifier.preprocess.channels is None and any(p.lower().endswith(".npy") for p in paths):
        paths = _paths(options, file, arrays=False)
    if file is None:
        _print(classifier, paths, asked, options)
    else:
        file.write(classifier, paths, asked)
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="vit classify", description="Classifies images with a trained model.", epilog=EPILOG
    )
    add = parser.add_argument
    add("model", help="a run, a weights file, a file of `vit export`, a name, or an address")
    add("images", nargs="+", help="pictures, or folders of pictures")
    add("--top", type=whole_number, default=5, metavar="N", help="number of classes (default 5)")
    for name, text in lines("texts").items():
        add(f"--{name}", metavar="X", help=text)
    for name, text in lines("answers").items():
        add(f"--{name}", type=float, metavar="P", help=text)
    for name, text in lines("views").items():
        add(f"--{name}", action="store_true", help=text)
    add("--raw", action="store_true", help="probabilities without the run's temperature")
    add("--device", help="such as cpu or cuda; default: a GPU if there is one")
    add_engine(add)
    add("--precision", choices=("float32", "bfloat16"), default="float32", help="default: float32")
    add("--json", action="store_true", help="print a list of objects")
    add("--on-error", choices=("error", "skip"), help="about an unreadable picture, without --out")
    add = parser.add_argument_group("answers in a file").add_argument
    add("--out", metavar="X", help="X.csv, X.jsonl or a folder X.parquet, with a row per picture")
    add_spreadsheet(add)
    add("--features", action="store_true", help="add a column with the head's input (.parquet)")
    add("--shard", metavar="I/N", help="part I (from 0) of N of the pictures; auto: the job's")
    add("--batch-size", type=whole_number, metavar="N", help="default: 32, on a CPU 8")
    add("--num-workers", type=int, metavar="N", help="reading processes; default: one per core")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Raises UserError for options that are impossible, alone or together."""
    with_out = ("features", "spreadsheet", "shard", "batch_size", "num_workers")
    without = ("json", "on_error")
    for name in with_out if options.out is None else without:
        if vars(options)[name] not in (None, False):
            needs = "needs" if options.out is None else "does not go with"
            raise UserError(f"--{name.replace('_', '-')} {needs} --out FILE")


class AnswerFile(Protocol):
    """The file of --out: a row of the table `answer_files`, under the suffix of its name."""

    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        """Raises UserError for a place, or for options, that cannot be used."""
        ...

    def listed(self, *, arrays: bool) -> "PathList":
        """Lists the pictures, as `pictures` does. UserError as in `pictures`."""
        ...

    def write(self, classifier: "Classifier", paths: "PathList", asked: "PredictOptions") -> None:
        """Adds the answers that the file lacks, and prints their number."""
        ...


def _answer_file(options: argparse.Namespace) -> AnswerFile:
    kinds, out = rows("answer_files"), Path(options.out).expanduser()
    if out.suffix not in kinds:
        *names, last = kinds
        raise UserError(f"--out {out}: the name must end in {', '.join(names)} or {last}")
    return resolve(kinds[out.suffix])(out, options)


def _paths(options: argparse.Namespace, file: AnswerFile | None, *, arrays: bool) -> "PathList":
    from vit.data.sources import PathList

    if file is not None:
        return file.listed(arrays=arrays)
    return PathList(pictures(options.images, arrays=arrays))


def _print(
    classifier: "Classifier",
    paths: "PathList",
    asked: "PredictOptions",
    options: argparse.Namespace,
) -> None:
    """Prints the answers. UserError for an unreadable picture, after the answers before it."""
    from vit.data.decode import ImageError

    answered: list[Mapping[str, Any]] = []
    try:
        with Meter("classifying", len(paths), "img", shown=options.json) as meter:
            for path in paths:
                meter.advance()
                try:
                    row = classifier.answers([path], asked)[0].row(path)
                except (ImageError, MemoryError) as error:
                    lacking = f"{printable(path)}: not enough memory to open it"
                    problem = lacking if isinstance(error, MemoryError) else str(error)
                    if options.on_error != "skip":
                        raise UserError(f"{problem}; --on-error skip skips it") from error
                    say(f"skipped: {problem}")
                    continue
                answered.append(row)
                if not options.json:
                    _print_row(row, asked)
    finally:  # also if an unreadable picture ends the command
        if options.json:
            print(json.dumps(answered, indent=2, ensure_ascii=False))
    if len(answered) < len(paths):
        say(f"{len(paths) - len(answered)} of {len(paths)} pictures were skipped")


def _print_row(row: Mapping[str, Any], asked: "PredictOptions") -> None:
    texts = [row["image"]]
    texts += [f"  {line}" for answer in asked.answers.values() if (line := answer.line(row))]
    if "labels" in row:
        texts.append(f"  labels: {', '.join(row['labels']) or 'none'}")
    texts += [f"  {best['probability']:6.1%}  {printable(best['class'])}" for best in row["top"]]
    show("\n".join(texts))
