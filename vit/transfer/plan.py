"""The plan of `vit transfer`: its arguments, each data set's protocol, and plan.json."""

import json
import math
import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from vit.data.catalog import CATALOG, PAPER_GRID, Protocol, list_datasets
from vit.errors import UserError, did_you_mean
from vit.recipes import find_recipe

CELLS_OWN = {
    "--model.pretrained": "the MODEL in front",
    "--model.optimizer.lr": "--lr-grid",
    "--data.dataset": "--data",
    "--data.root": "--data",
    "--data.splits.val_fraction": "--val-fraction",
    "--trainer.max_steps": "--steps",
    "--trainer.max_epochs": "--steps",
    "--trainer.limit_val_batches": "nothing: the slice is scored once",
    "--seed_everything": "--seeds",
    "--final_split": "nothing: the plan decides",
    "--run_dir": "--out",
    "--resume": "nothing: the same command continues",
}
"""Options of `vit fit` that the plan sets, with the option to use instead."""


def protocol(name: str, images: int) -> Protocol:
    """The paper's protocol, or for other data sets the paper's most common grid and the steps of
    BiT-HyperRule for `images` training images (arXiv:1912.11370, section 3.3)."""
    if name in CATALOG and (paper := CATALOG[name].paper) is not None:
        return paper.transfer
    steps = 500 if images < 20_000 else 10_000 if images < 500_000 else 20_000
    return Protocol(steps, PAPER_GRID, 0.1)


@dataclass(frozen=True)
class Source:
    """One item of --data: a catalog data set, or the user's files."""

    name: str
    root: str | None

    @property
    def options(self) -> list[str]:
        """Options of `vit fit`."""
        if self.root is None:
            return ["--data.dataset", self.name, "--data.root", "null"]
        return ["--data.root", self.root]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The command line, validated without reading model and data."""

    model: str
    sources: list[Source]
    recipe: str
    seeds: int
    lr_grid: tuple[float, ...] | None
    steps: int | None
    image_size: int | None
    val_fraction: float | None
    rest: list[str] = field(default_factory=list)
    """Further options of `vit fit`."""

    def __post_init__(self) -> None:
        for name, value in (
            ("--seeds", self.seeds),
            ("--steps", self.steps),
            ("--image-size", self.image_size),
        ):
            if value is not None and value < 1:
                raise UserError(f"{name} {value} must be at least 1")
        if self.val_fraction is not None and not 0 < self.val_fraction < 1:
            raise UserError(f"--val-fraction {self.val_fraction} is not between 0 and 1")
        for option in (arg.split("=", 1)[0] for arg in self.rest):
            if option in CELLS_OWN:
                raise UserError(f"{option} after -- is set for each cell; use {CELLS_OWN[option]}")
            if option == "--data.image_size" and self.image_size is not None:
                raise UserError("--image-size and --data.image_size after --: give one of them")
        _digests(self)  # reports an unknown recipe before anything is loaded

    def protocol(self, name: str, images: int) -> Protocol:
        """The protocol of a data set, with the user's changes."""
        default = protocol(name, images)
        return Protocol(
            self.steps or default.steps,
            self.lr_grid or default.lr_grid,
            self.val_fraction or default.val_fraction,
        )

    def document(self) -> dict[str, Any]:
        """For plan.json: the options that a later call with the same --out must share."""
        model = Path(self.model).expanduser()
        return {
            "MODEL": str(model.resolve()) if model.exists() else self.model,
            "--data": [
                f"{s.name}={Path(s.root).resolve()}" if s.root else s.name for s in self.sources
            ],
            "--recipe": self.recipe,
            "--seeds": self.seeds,
            "--lr-grid": self.lr_grid and list(self.lr_grid),
            "--steps": self.steps,
            "--image-size": self.image_size,
            "--val-fraction": self.val_fraction,
            "--": self.rest,
            "recipes": _digests(self),
        }


def parse_sources(text: str) -> list[Source]:
    """Parses 'cifar10,my_photos/,pets=/data/pets' into sources with distinct names."""
    sources = [_source(item.strip()) for item in text.split(",") if item.strip()]
    if not sources:
        raise UserError("--data is empty; give names or folders, as in --data cifar10,my_photos/")
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--data has {name!r} twice; name one of them, as in other={name}")
    return sources


def _source(item: str) -> Source:
    from vit.data.manifest import SUFFIXES

    names = list_datasets()
    if item in names:
        return Source(item, None)
    name, equals, path = item.partition("=")
    if not equals or Path(item).expanduser().exists():
        name, path = "", item
    if not path:  # Path("") is the current directory
        raise UserError(f"--data {item} names no folder; the current directory is .")
    place = Path(path).expanduser()
    if not place.exists():
        hint = did_you_mean(item, names) or f"; known: {', '.join(names)}"
        raise UserError(f"--data {item}: no data set has this name, and no folder or CSV{hint}")
    if not place.is_dir() and place.suffix.lower() not in SUFFIXES:
        raise UserError(f"--data {item} is neither a folder nor a .csv or .parquet file")
    name = name or (place.resolve().name if place.is_dir() else place.stem)
    if not re.fullmatch(r"\w[^/=|]*", name):
        raise UserError(f"--data {item}: {name!r} cannot name its folder; use NAME={path}")
    return Source(name, str(place))


def parse_grid(text: str | None) -> tuple[float, ...] | None:
    """Parses '0.001,0.003', in ascending order; None for the data sets' grids."""
    if text is None:
        return None
    try:
        grid = sorted(float(item) for item in text.split(",") if item.strip())
    except ValueError as error:
        raise UserError(f"--lr-grid {text!r}: {error}; give 0.001,0.01 or the like") from error
    if not grid:
        raise UserError("--lr-grid is empty; give learning rates, such as 0.001,0.003,0.01,0.03")
    for lr in grid:
        if not (math.isfinite(lr) and lr > 0):
            raise UserError(f"--lr-grid {text}: {lr} is not a learning rate above 0")
        if grid.count(lr) > 1:
            raise UserError(f"--lr-grid {text} has {lr} twice")
    return tuple(grid)


def _digests(arguments: Arguments) -> dict[str, str]:
    """Recipe -> prefix of the SHA-256 of its text, because cells of two recipes must not mix."""
    rest = arguments.rest
    names = [rest[i + 1] for i, arg in enumerate(rest[:-1]) if arg in ("-c", "--config")]
    names += [arg.removeprefix("--config=") for arg in rest if arg.startswith("--config=")]
    texts = {name: find_recipe(name).read_bytes() for name in (arguments.recipe, *names)}
    return {name: sha256(text).hexdigest()[:12] for name, text in texts.items()}


COMMAND = "command"


def check_plan(path: Path, key: str, values: dict[str, Any]) -> None:
    """Writes `values` to `key` of plan.json; UserError if it has other values."""
    plan = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    now = json.loads(json.dumps(values))  # as it would be read back
    if key not in plan:
        from vit.writing import write_json

        write_json(path, {**plan, key: now})
        return
    for name, value in now.items():
        before = plan[key].get(name)
        if before != value:
            was, now_is = _shown(key, name, before), _shown("", "", value)
            raise UserError(
                f"{path.parent} was started with {was}, now it is {now_is}; choose "
                "another --out, or the same options"
            )


def _shown(key: str, name: str, value: Any) -> str:
    """Name and value of an entry of plan.json, as text."""
    if key == COMMAND:
        key = ""
    if value is None or value == []:
        text = "not given"
    elif isinstance(value, dict):
        text = ", ".join(f"{part} {number}" for part, number in value.items())
    else:
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{key} {name} {text}".strip()
