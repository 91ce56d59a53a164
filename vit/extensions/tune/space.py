"""The options that `vit tune` chooses from. A cell is a training: option -> value, of the options
whose value is not the default's, that of `vit fit --data D`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from vit.recipes import find_recipe, read_options

SPACE: dict[str, dict[str, str]] = {
    "method": {"finetune": "", "lora": "", "probe": ""},  # recipes
    "rate": {"1": "", "0.3": "", "3": ""},  # times the recipe's
    "layer_decay": {
        "0.75": "",
        "0.65": "--model.learning.layer_decay=0.65",
        "0.9": "--model.learning.layer_decay=0.9",
    },
    "augment": {
        "recipe": "",
        "gentle": "--data.augment.crop_area=[0.64,1.0]",
        "strong": "--data.augment.policy=vit.RandAugment",
    },
    # Times the encoder's, and times the rung's; above 1 takes longer than planned.
    "image_size": {"1": "", "0.5": ""},
    "steps": {"1": "", "0.5": ""},
    "teacher": {"none": "", "default": ""},  # the default's run, by half of the loss
}
"""Option -> value -> word of `vit fit`; the default's value first."""
WITHOUT = {"lora": {"layer_decay"}, "probe": {"rate", "layer_decay", "augment", "steps", "teacher"}}
"""Method -> options that have no effect."""
Cell = dict[str, str]


@dataclass(frozen=True)
class Encoder:
    """Pretrained weights; name, height and width of their images, and pixels of a patch."""

    weights: str
    name: str
    size: tuple[int, int]
    patch: int


def options(encoders: Sequence[Encoder]) -> dict[str, list[str]]:
    """Option -> its values, the default's first."""
    return {"encoder": [e.name for e in encoders], **{name: [*SPACE[name]] for name in SPACE}}


def ordered(encoders: Sequence[Encoder], seed: int) -> dict[str, Cell]:
    """Name -> cell, of all: the default, then cells that differ from it in one option, then the
    others as drawn."""
    table, cells = options(encoders), []
    for values in product(*table.values()):
        pairs = zip(table, values, strict=True)
        cell = {name: value for name, value in pairs if value != table[name][0]}
        if not cell.keys() & WITHOUT.get(cell.get("method", ""), set()):
            cells.append(cell)
    few = [{}] + [{name: value} for name in table for value in table[name][1:]]
    others = [cell for cell in cells if len(cell) > 1]
    random.Random(seed).shuffle(others)
    return {"-".join(f"{n}-{v}" for n, v in c.items()) or "default": c for c in few + others}


def words(cell: Cell, encoders: Sequence[Encoder], steps: int) -> list[str]:
    """The words of `vit fit` of a cell in a rung of so many steps, without data and seed."""
    recipe = cell.get("method", "finetune")
    encoder = next((e for e in encoders if e.name == cell.get("encoder")), encoders[0])
    texts = [f"--config={recipe}", f"--model.pretrained={encoder.weights}"]
    if rate := cell.get("rate"):
        usual = read_options(find_recipe(recipe))["model"]["optimizer"]["init_args"]["lr"]
        texts.append(f"--model.optimizer.lr={usual * float(rate):.6g}")
    if factor := cell.get("image_size"):
        patches = [max(round(side * float(factor) / encoder.patch), 1) for side in encoder.size]
        texts.append(f"--data.image_size={[n * encoder.patch for n in patches]}")
    if recipe != "probe":
        steps = max(round(steps * float(cell.get("steps", 1))), 1)
        texts += [f"--trainer.max_steps={steps}", "--trainer.max_epochs=-1"]
    of_table = (SPACE[name][value] for name, value in cell.items() if name in SPACE)
    return texts + [word for word in of_table if word]
