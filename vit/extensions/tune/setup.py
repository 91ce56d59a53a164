"""Images, splits and encoders of `vit tune`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vit.console import note
from vit.errors import UserError
from vit.extensions.formats.published import table
from vit.extensions.transfer.transfer import columns_of_csv, csv_of
from vit.extensions.tune.space import SPACE, Encoder
from vit.fine_tuning import ENOUGH_TO_CHOOSE, steps_for
from vit.models.config import ViTConfig
from vit.models.fields import as_size
from vit.recipes import DEFAULT_RECIPE, find_recipe, read_options
from vit.runs.options import Options
from vit.runs.records import Record
from vit.weights.pretrained import inspect_pretrained
from vit.writing import write_text

VAL_IMAGES, MOST_SHARE = 0.9 * ENOUGH_TO_CHOOSE, 0.3
"""Images that are cut from train for val, at most this share of it; with more of them, a run of the
search would choose the average of its weights by them, and a final run could not."""
STRIDE = 32
"""Pixels by which the sides of a ResNet's images can be divided."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Words of `vit fit` that all cells share, and facts of their images."""

    search: list[str]
    """Of the runs that val scores."""
    final: list[str]
    """Of those that test scores: images of val that was cut from train are trained on, too."""
    encoders: list[Encoder]
    steps: int
    """Of the default recipe's final run."""
    images: dict[str, int]
    facts: Record
    """Options and digests by which a later call is known to be the same."""


def set_up(data: str, names: Sequence[str], seed: int, rest: list[str], folder: Path) -> Setup:
    """Reads data and weights as a run will. UserError for a mistake in them."""
    names = [*dict.fromkeys(names or _in_cache())]
    default = [f"--config={DEFAULT_RECIPE}", *rest, f"--model.pretrained={names[0]}"]
    source, seeded = [f"--data={data}"], f"--data.splits.seed={seed}"
    splits = Options([*default, *source, seeded]).data.splits
    if splits.multilabel or (splits.test is None and splits.val is None):
        lack = "several labels per image" if splits.multilabel else "too few images to hold any out"
        raise UserError(f"{data} has {lack}; `vit tune` compares accuracies on held-out images")
    cut = splits.test is None or splits.val is None
    if splits.test is None:
        note(f"{data} has no test images: its val is test here, and val is cut from train")
        write_text(folder / "images.csv", csv_of(splits, "test"), errors="surrogateescape")
        source = [f"--data.root={folder / 'images.csv'}", *columns_of_csv(splits)]
    share = min(VAL_IMAGES / len(splits.train), MOST_SHARE)
    final = [*rest, *source, seeded]
    search = [*final, *([f"--data.splits.val_fraction={share:.3g}"] if cut else [])]
    options = Options([*default, *search])
    images = {name: len(each) for name, each in options.data.splits.present().items()}
    encoders = [_encoder(name, [*default, *final]) for name in names]
    facts = {**options.recorded(), "images": options.data.digests, "space": SPACE, "seed": seed}
    return Setup(
        search=[*search, "--trainer.limit_val_batches=0", "--final_split=val"],
        final=[*final, "--final_split=test"],
        encoders=encoders,
        steps=steps_for(images["train"] + cut * images["val"], options.data.batch_size),
        images=images,
        facts={**facts, "encoders": names},
    )


def _in_cache() -> list[str]:
    """The encoder of the default recipe, and published ones in the cache that are no larger."""
    first: str = read_options(find_recipe(DEFAULT_RECIPE))["model"]["pretrained"]
    rows = table()
    here = [name for name, row in rows.items() if row.place().is_file()]
    return [first, *(name for name in here if rows[name].bytes <= rows[first].bytes)]


def _encoder(weights: str, others: list[str]) -> Encoder:
    """Facts of weights. UserError for unknown ones."""
    size = Options([*others, f"--model.pretrained={weights}"]).config.data.image_size
    network = inspect_pretrained(weights).config
    patch = network.patch_size if isinstance(network, ViTConfig) else STRIDE
    return Encoder(weights, Path(weights).name, as_size(size or network.size), patch)
