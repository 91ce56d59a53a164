"""--out of `vit classify`: answers for many pictures in a file that grows by whole rows."""

import argparse
import os
import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from vit.cli.arguments import pictures
from vit.console import say
from vit.data.sources import PathList
from vit.errors import UserError, needed
from vit.extensions.answers.answer_files import ALL, columns, identity, opened
from vit.extensions.answers.answers import answer
from vit.inference.answers import PredictOptions
from vit.inference.classifier import Classifier
from vit.tables import rows
from vit.writing import writable


def part_of(shard: str) -> tuple[int, int]:
    """I, from 0, and N of --shard I/N. UserError for another form.

    `auto` is this task of a job array of SLURM, or of an Indexed Job of Kubernetes whose
    completions are VIT_SHARDS.
    """
    text = _scheduled() if shard == "auto" else shard
    numbers = re.fullmatch(r"(\d+)/(\d+)", text, flags=re.ASCII)
    part, parts = map(int, numbers.groups()) if numbers else (0, 0)
    if part >= parts:
        means = f" ({text})" if shard == "auto" else ""
        raise UserError(f"--shard {shard}{means} is not I/N, I from 0 to N - 1, such as 0/8")
    return part, parts


def _scheduled() -> str:
    """I/N by the variables of the scheduler."""
    if (part := os.environ.get("JOB_COMPLETION_INDEX")) is not None:
        if (parts := os.environ.get("VIT_SHARDS")) is None:
            raise UserError("--shard auto: set VIT_SHARDS to the completions of the Job")
        return f"{part}/{parts}"
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "COUNT")]
    try:
        task, first, last, count = (int(os.environ[name]) for name in names)
    except KeyError as error:
        raise UserError(
            f"--shard auto needs JOB_COMPLETION_INDEX, or {', '.join(names)}; {error} is not set"
        ) from None
    if last - first + 1 != count:
        raise UserError(f"--shard auto: {count} tasks from {first} to {last}; --array has gaps")
    return f"{task - first}/{count}"


def _digest(paths: PathList) -> str:
    """A digest of path, size and time of change of each picture."""
    digest = blake2b(digest_size=8)
    for path in paths:
        with suppress(OSError):  # such as one that has gone
            status = os.stat(path)
            digest.update(f"{status.st_size} {status.st_mtime_ns} ".encode())
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()


class AnswerFile:
    """A file of --out, whose suffix is that of a row of the table `answer_files`."""

    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        if options.features and out.suffix != ".parquet":
            raise UserError(f"--features needs a folder of Parquet files: --out {out.stem}.parquet")
        if out.suffix == ".parquet":
            needed("pyarrow", "parquet")
        writable(out.parent, "--out")
        if options.spreadsheet and out.suffix != ".csv":
            raise UserError(f"--spreadsheet is for a CSV: --out {out.stem}.csv")
        if options.num_workers is not None and options.num_workers < 0:
            raise UserError(f"--num-workers {options.num_workers} must be at least 0")
        self._out, self._options = out, options
        self._whole = self._part = ""

    def listed(self, *, arrays: bool) -> PathList:
        """The pictures sorted, each once, and only those of the shard."""
        names: dict[str, str] = {}  # path -> the same below the folder that is named
        for argument in self._options.images:
            folder = f"{Path(argument).expanduser()}{os.sep}"
            for path in pictures([argument], arrays=arrays):
                names.setdefault(path, path.removeprefix(folder))
        paths, shard = sorted(names), self._options.shard
        digest = PathList(map(names.__getitem__, paths)).digest()
        self._whole = f"{len(paths):,} (digest {digest})"
        if shard is not None:
            part, parts = part_of(shard)
            self._part = f"{part}/{parts}"
            # By its name alone: a picture stays in its part when others are added or deleted.
            digests = (blake2b(os.fsencode(names[path]), digest_size=8).digest() for path in paths)
            places = (int.from_bytes(digest, "little") % parts for digest in digests)
            paths = [path for path, place in zip(paths, places, strict=True) if place == part]
        return PathList(paths)

    def write(self, classifier: Classifier, paths: PathList, asked: PredictOptions) -> None:
        """Adds the rows of the pictures that have none yet."""
        options = self._options
        names = columns(classifier, asked, features=options.features)
        facts = {
            "model": options.model,
            "pictures": f"{len(paths):,} (digest {_digest(paths)})",
            ALL: self._whole,
            "top": asked.top,
            **{name: asked.numbers.get(name) for name in rows("answers")},
            **{name: vars(options)[name] for name in rows("views")},
            "features": options.features,
            "spreadsheet": options.spreadsheet,
            "precision": options.precision,
            "raw": options.raw,
            "weights": identity(classifier),
            **{f"{name}_by": row.measured for name, row in asked.answers.items() if row.measured},
        }
        with opened(self._out, names, facts, spreadsheet=options.spreadsheet) as file:
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
        say(f"{self._out}: {tally}")
        if self._part:
            say(f"part {self._part} of {self._whole} pictures; the other parts must be of the same")
