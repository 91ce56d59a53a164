"""`vit classify`: the most probable classes of images, printed or written to a file."""

import argparse
import json
import os
import re
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.arguments import (
    OneLineParser,
    add_engine,
    add_spreadsheet,
    asked_device,
    chosen_device,
    number,
    pictures,
    whole_number,
)
from vit.console import note, say, show
from vit.errors import UserError, printable
from vit.hardware import has_bfloat16

if TYPE_CHECKING:
    from vit.data.sources import PathList
    from vit.inference.classifier import Asked, Classifier

EPILOG = """\
examples:
  vit classify runs/my_photos-finetune photo.jpg more/*.jpg
  vit classify runs/my_photos-finetune holidays/ --out answers.csv
  vit classify MODEL /data/photos --out answers-3.parquet --shard 3/8 --features

The same command continues an --out that was interrupted, after its last answer."""


def run(args: list[str]) -> int:
    """Prints or writes the most probable classes of every image, and its labels if it may have
    several."""
    options = _parser().parse_args(args)
    out = None if options.out is None else Path(options.out).expanduser()
    _check(options, out)
    paths, whole = _listed(options, arrays=True)  # before the model is loaded
    from vit.inference.classifier import Asked, load

    engine = {"engine": options.engine, "precision": options.precision}
    asked = Asked(**{field.name: getattr(options, field.name) for field in fields(Asked)})
    classifier = load(options.model, **engine, raw=options.raw)
    classifier.check(asked)
    with chosen_device(asked_device(options)) as device:
        classifier.to(device)
    if classifier.engine is not None:
        say(f"computed by {classifier.engine.name}")
    elif options.precision == "bfloat16" and device == "cpu" and not has_bfloat16():
        note("this CPU has no units for bfloat16: float32 is faster")
    if classifier.preprocess.channels is None and any(p.lower().endswith(".npy") for p in paths):
        paths, whole = _listed(options)  # without .npy files
    if out is None:
        _print(classifier, paths, asked, options)
    else:
        _write(classifier, paths, whole, out, asked, options)
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="vit classify",
        description="Classifies images with a trained model.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("model", help="a run, a file of weights or of `vit export`, a name or an address")
    add("images", nargs="+", help="pictures, or folders of them")
    add("--top", type=whole_number, default=5, metavar="N", help="classes (default 5)")
    text = "classes in a tree: answer with the deepest node whose probability is above P"
    add("--confidence", type=float, metavar="P", help=text)
    add("--coverage", type=number, metavar="C", help="a set with the true class this often: 0.9")
    add("--unknown", type=number, metavar="U", help="none of these outside this share of val: 0.95")
    add("--raw", action="store_true", help="probabilities without the run's temperature")
    add("--device", help="such as cpu or cuda; default: the best")
    add_engine(add)
    precisions = ("float32", "bfloat16")
    add("--precision", choices=precisions, default="float32", help="default float32")
    add("--json", action="store_true", help="print a list of objects")
    choices = ("error", "skip")
    add("--on_error", choices=choices, help="for unreadable pictures that are printed")
    add = parser.add_argument_group("answers in a file").add_argument
    add("--out", metavar="X", help="X.csv, X.jsonl, or a folder X.parquet: a row per picture")
    add_spreadsheet(add)
    add("--features", action="store_true", help="a column with the head's input (.parquet)")
    add("--shard", metavar="I/N", help="part I, from 0, of N parts of the pictures")
    add("--batch-size", type=whole_number, metavar="N", help="default 32, on a CPU 8")
    add("--num-workers", type=int, metavar="N", help="processes that read (default: one per core)")
    return parser


def _check(options: argparse.Namespace, out: Path | None) -> None:
    """Raises UserError for options that are impossible, alone or together."""
    with_out = ("features", "spreadsheet", "shard", "batch_size", "num_workers")
    without = ("json", "on_error")
    for name in with_out if out is None else without:
        if getattr(options, name) not in (None, False):
            option = f"--{name if name == 'on_error' else name.replace('_', '-')}"
            raise UserError(f"{option} {'needs' if out is None else 'does not go with'} --out FILE")
    if options.num_workers is not None and options.num_workers < 0:
        raise UserError(f"--num-workers {options.num_workers} must be at least 0")
    if out is not None:
        from vit.inference.answer_files import check_answer_file

        check_answer_file(out, features=options.features)
        if options.spreadsheet and out.suffix != ".csv":
            raise UserError(f"--spreadsheet is for a CSV: --out {out.stem}.csv")


def _listed(options: argparse.Namespace, *, arrays: bool = False) -> "tuple[PathList, str]":
    """The pictures as they are named; with --out sorted, each once, and only those of the shard.
    Count and digest of those of all shards."""
    from vit.data.sources import PathList

    if options.out is None:
        return PathList(pictures(options.images, arrays=arrays)), ""
    names: dict[str, str] = {}  # path -> the same below the folder that is named
    for argument in options.images:
        folder = f"{Path(argument).expanduser()}{os.sep}"
        for path in pictures([argument], arrays=arrays):
            names.setdefault(path, path.removeprefix(folder))
    paths = sorted(names)
    whole = f"{len(paths):,} (digest {PathList(map(names.__getitem__, paths)).digest()})"
    if options.shard is not None:
        shard = re.fullmatch(r"(\d+)/(\d+)", options.shard)
        part, parts = map(int, shard.groups()) if shard else (0, 0)
        if part >= parts:
            raise UserError(f"--shard {options.shard} is not I/N, I from 0 to N - 1, such as 0/8")
        # By its name alone: a picture stays in its part when others are added or deleted.
        digests = (blake2b(os.fsencode(names[path]), digest_size=8).digest() for path in paths)
        numbers = (int.from_bytes(digest, "little") % parts for digest in digests)
        paths = [path for path, number in zip(paths, numbers, strict=True) if number == part]
    return PathList(paths), whole


def _write(
    classifier: "Classifier",
    paths: "PathList",
    whole: str,
    out: Path,
    asked: "Asked",
    options: argparse.Namespace,
) -> None:
    from vit.inference.answer_files import ALL, opened
    from vit.inference.answers import answer, columns, identity

    facts = {
        "model": options.model,
        "pictures": f"{len(paths):,} (digest {paths.digest()})",
        ALL: whole,
        **asdict(asked),
        "features": options.features,
        "spreadsheet": options.spreadsheet,
        "precision": options.precision,
        "raw": options.raw,
        "weights": identity(classifier),
        "unknown_by": classifier.trust.score if asked.unknown and classifier.trust else None,
    }
    names = columns(classifier, asked, features=options.features)
    with opened(out, names, facts, spreadsheet=options.spreadsheet) as file:
        tally = answer(
            classifier,
            paths,
            file.add,
            asked,
            start=file.done,
            features=options.features,
            batch_size=options.batch_size,
            num_workers=options.num_workers,
        )
    say(f"{out}: {tally}")
    if options.shard is not None:
        say(f"part {options.shard} of {whole} pictures; the other parts must be of the same")


def _print(
    classifier: "Classifier", paths: "PathList", asked: "Asked", options: argparse.Namespace
) -> None:
    """UserError for an unreadable picture, after the answers before it."""
    from vit.inference.answers import answer

    answered: list[dict[str, Any]] = []

    def show(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if "error" in row:
                if options.on_error != "skip":
                    way = "--on_error skip goes on with the others"
                    raise UserError(f"{row['image']}: {row['error']}; {way}")
                say(f"skipped: {row['image']}: {row['error']}")
                continue
            answered.append(row)
            if not options.json:
                _print_row(row)

    try:
        answer(classifier, paths, show, asked, progress=options.json)
    finally:  # also if an unreadable picture ends the command
        if options.json:
            print(json.dumps(answered, indent=2, ensure_ascii=False))
    if len(answered) < len(paths):
        say(f"{len(paths) - len(answered)} of {len(paths)} pictures were skipped")


def _print_row(row: dict[str, Any]) -> None:
    show(row["image"])
    if row.get("unknown"):
        show("  none of these; the most alike:")
    if "labels" in row:
        show(f"  labels: {', '.join(row['labels']) or 'none'}")
    if "set" in row:
        show(f"  set: {', '.join(row['set'])}")
    if "answer" in row:
        found = f"{row['answer']} ({row['answer_probability']:.1%})" if row["answer"] else "none"
        show(f"  answer: {found}")
    for best in row["top"]:
        show(f"  {best['probability']:6.1%}  {printable(best['class'])}")
