"""The tasks of `vit transfer`: which images select a learning rate, train and test.

For a catalog set or a folder with train/ and test/, the slice is what
`--data.splits.val_fraction` splits off. If val is given, or if test would be split with the seed of
each run, the plan lists the images in two files: search.csv (train, val, test) and final.csv, in
which val is part of train.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.checkpoints.pretrained import inspect_pretrained
from vit.data.catalog import Protocol
from vit.data.manifest import SEPARATOR, load_manifest
from vit.data.sources import ImageSet, PathList, Splits
from vit.errors import UserError
from vit.transfer.plan import Arguments, Source
from vit.writing import atomic

SMALL_SLICE = 200

Preview = Callable[[list[str], Callable[[Any], None]], Splits]
"""preview(arguments, check): parses the arguments of a `vit fit`, passes the resolved configuration
to `check`, builds data and model without training, and returns the data's splits."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One data set with its options."""

    name: str
    protocol: Protocol
    search: list[str]
    """Options of `vit fit` for the search runs."""
    final: list[str]
    """Options of `vit fit` for the final runs."""
    images: dict[str, int]
    """Numbers of train (of the final runs), slice (part of it) and test images."""
    metric: str
    """acc1, or map for multi-label data."""
    notes: list[str]

    @property
    def searches(self) -> bool:
        """Whether there is a slice to search on."""
        return len(self.protocol.lr_grid) > 1


def prepare(arguments: Arguments, source: Source, folder: Path, preview: Preview) -> Task:
    """Reads data and weights as a cell will, so that errors are found before any training.

    Writes image lists to `folder` if they are needed. Raises UserError for anything that `vit fit`
    would refuse, and for a set without test images.
    """
    early = arguments.protocol(source.name, 0)
    searching = len(early.lr_grid) > 1
    fraction = early.val_fraction if searching else 0.0
    options = [*source.options, "--data.splits.val_fraction", repr(fraction)]
    first = cell_arguments(arguments, early, options, lr=early.lr_grid[0], seed=0)
    splits = preview(first, _check_recipe)
    if splits.test is None:
        raise UserError(
            f"{source.root or source.name} has no test images: give it a test folder (or rows), or "
            "rename its val to test; the slice is then split from train"
        )
    notes = list(splits.notes)
    kept = splits.val if searching else None
    count = len(splits.train) + len(splits.val or ())
    final = [*source.options, "--data.splits.val_fraction", "0"]
    if splits.val_origin == "given" or splits.test_origin == "cut from train":
        options, final = _list_images(folder, splits)
    if splits.val_origin == "given" and searching:
        notes.append(f"{source.name}: its val is the slice, and final runs also train on it")
        if arguments.val_fraction is not None:
            notes.append(f"{source.name}: --val-fraction has no effect, as val is given")
    if kept is not None and len(kept) < SMALL_SLICE:
        notes.append(
            f"{source.name}: the slice has {len(kept)} images, so one image is "
            f"{100 / len(kept):.1f} %; a larger --val-fraction is more precise"
        )
    return Task(
        name=source.name,
        protocol=arguments.protocol(source.name, count),
        search=[*options, "--trainer.limit_val_batches", "0", "--final_split", "val"],
        final=[*final, "--final_split", "test"],
        images={"train": count, "slice": len(kept or ()), "test": len(splits.test)},
        metric="map" if splits.multilabel else "acc1",
        notes=notes,
    )


def cell_arguments(
    arguments: Arguments, protocol: Protocol, options: list[str], *, lr: float, seed: int
) -> list[str]:
    """The arguments of `vit fit`; those of the plan come last and override recipes."""
    size = [] if arguments.image_size is None else ["--data.image_size", str(arguments.image_size)]
    return [
        "-c",
        arguments.recipe,
        "--model.schedule.warmup_steps",
        str(protocol.warmup_steps),
        *arguments.rest,
        *size,
        *options,
        "--model.pretrained",
        arguments.model,
        "--model.optimizer.lr",
        repr(lr),
        "--trainer.max_steps",
        str(protocol.steps),
        "--trainer.max_epochs",
        "-1",
        "--seed_everything",
        str(seed),
    ]


def _check_recipe(config: Any) -> None:
    """Raises UserError if the task or image size of a resolved configuration does not fit."""
    if config.task != "classification":
        raise UserError(
            f"the task of the recipe is {config.task}; `vit transfer` needs one that classifies"
        )
    facts = dict(config.model.architecture or {})
    model = inspect_pretrained(config.model.pretrained, **facts).config
    patch_size = getattr(model, "patch_size", None)  # ResNets have none
    changed = "patch_size" in facts
    if patch_size is not None and not changed and config.data.image_size is not None:
        check_image_size(config.data.image_size, patch_size, config.model.pretrained)


def check_image_size(image_size: int | Sequence[int], patch_size: int, model: str) -> None:
    """Suggests an image size that fits; choosing it silently would change the experiment."""
    sides = [image_size] if isinstance(image_size, int) else list(image_size)
    if all(side % patch_size == 0 for side in sides):
        return
    fitting = [-(-side // patch_size) * patch_size for side in sides]
    option = f"--image-size {fitting[0]}"
    if len(set(fitting)) > 1:
        option = f"`-- --data.image_size [{','.join(map(str, fitting))}]`"
    shown = "x".join(map(str, sides))
    raise UserError(
        f"image_size={shown} of the recipe is not a multiple of {patch_size}, the patch size of "
        f"{model}; add {option}"
    )


def _list_images(folder: Path, splits: Splits) -> tuple[list[str], list[str]]:
    """Writes search.csv and final.csv. Returns the options of `vit fit` for them."""
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    present = {name: images for name, images in parts.items() if images is not None}
    options = []
    for file, val in (("search.csv", "val"), ("final.csv", "train")):
        rows = {name: val if name == "val" else name for name in present}
        path = folder / file
        text = _manifest(present, rows, splits)
        if not path.is_file():
            with atomic(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            raise UserError(
                f"the images of {folder.name} have changed since {folder.parent} was started; "
                "choose another --out"
            )
        _check_manifest(path, splits)
        options.append(["--data.root", str(path), "--data.splits.val_fraction", "0"])
    return options[0], options[1]


def _manifest(parts: dict[str, ImageSet], rows: dict[str, str], splits: Splits) -> str:
    """CSV for `vit fit`, with unchanged names, even if a spreadsheet would run them."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    # The second, empty label column marks the data as multi-label.
    several = ["label"] if splits.multilabel else []
    writer.writerow(["path", "label", *several, "split"])
    for name, images in parts.items():
        # Data sets in memory have fixed test images, and those of the catalog have no val.
        assert isinstance(images.items, PathList)
        for path, label in zip(images.items, images.labels, strict=True):
            classes = label.nonzero()[0] if splits.multilabel else [label]
            text = SEPARATOR.join(splits.classes[i] for i in classes)
            writer.writerow([path, text, *("" for _ in several), rows[name]])
    text = file.getvalue()
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        near = text[max(error.start - 40, 0) : error.start].rsplit("\n", 1)[-1]
        raise UserError(f"the file name that begins with {near!r} is not Unicode; rename it") from (
            error
        )
    return text


def _check_manifest(path: Path, splits: Splits) -> None:
    """Raises UserError for names with `|` or outer blanks, which CSV cannot represent."""
    back = load_manifest(path, val_fraction=0.0, test_fraction=0.0)
    if set(back.classes) != set(splits.classes) or back.multilabel != splits.multilabel:
        lost = sorted(set(splits.classes) - set(back.classes))
        raise UserError(f"class names with {SEPARATOR!r} or outer blanks cannot be listed: {lost}")
