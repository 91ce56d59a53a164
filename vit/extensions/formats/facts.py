"""Facts of a file that its tensors show: layers, heads, patches and positions; and what a position
table or absent biases become."""

import math
from collections.abc import Iterable

import torch

from vit.extensions.formats.refusals import FAMILIES
from vit.models.config import ViTConfig
from vit.preprocessing import Size
from vit.weights.formats import LazyTensors, MissingFact
from vit.weights.weight_file import WeightFile


def fill_qkv_biases(tensors: LazyTensors, config: ViTConfig) -> None:
    """Adds biases of zero to attention that is computed without any, which changes no logit."""
    names = [f"blocks.{i}.attn.qkv.bias" for i in range(config.depth)]
    if tensors.keys().isdisjoint(names):
        tensors |= dict.fromkeys(names, lambda: torch.zeros(3 * config.width))


def positions_into_token(tensors: LazyTensors, name: str, start: int, count: int) -> None:
    """Moves the entries `start` to `start + count` of the position table into their token."""
    token, table, end = tensors[name], tensors["pos_embed"], start + count
    tensors[name] = lambda: token() + table()[:, start:end]
    tensors["pos_embed"] = lambda: torch.cat([table()[:, :start], table()[:, end:]], dim=1)


def count_layers(keys: Iterable[str], prefix: str) -> int:
    """Number of layers whose keys are `prefix` + number + '.' + ...; they start at 0."""
    digits = (key[len(prefix) :].split(".")[0] for key in keys if key.startswith(prefix))
    return max((int(number) + 1 for number in digits if number.isdigit()), default=0)


def patch_size_of(side: int, stem_depths: tuple[int, ...] | None) -> int:
    """Pixels from one token to the next, where `side` positions of the stem's map make a patch."""
    return side * ViTConfig(stem_depths=stem_depths, patch_size=32).stem_stride


def grid_of(
    entries: int, slots: Iterable[int], size: Size | None, patch: int, *, stated: bool = False
) -> tuple[Size, int]:
    """Grid (rows, columns) and prefix slots of a position table with so many entries: by the size
    that the file has `stated`; else a square, with its choice of `slots`; else by one asked for.
    """
    sides = {n: math.isqrt(max(entries - n, 0)) for n in slots}
    squares = [n for n, side in sides.items() if 0 < side * side == entries - n]
    grid = (size[0] // patch, size[1] // patch) if size else (0, 0)
    rest = entries - math.prod(grid)
    if size and rest in sides and (stated or rest not in squares or grid[0] == grid[1]):
        return grid, rest
    if squares:
        return (sides[squares[0]], sides[squares[0]]), squares[0]
    raise MissingFact(
        f"the position table has {entries} entries, which is no square grid; give "
        "image_size=(height, width), the size that the file was made for"
    )


def heads_of_width(file: WeightFile, width: int, notes: list[str], *, scaled: bool = False) -> int:
    """Heads of the published models of this width, for files that do not record them. Adds a note.

    At width 1536 they differ: DINOv2's ViT-g, which has LayerScale (`scaled`), has 24.
    """
    number = dict(FAMILIES["sizes"].values()).get(width)
    if width == 1536:
        number = 24 if scaled else None
    if width == 384 and file.prefix.endswith(("base_encoder.", "momentum_encoder.")):
        number = 12  # MoCo v3's ViT-S (vits.py), in its trainings
    if number is None:
        raise MissingFact(
            f"{file.path} does not say how many attention heads its width of {width} is divided "
            "into; give num_heads=..."
        )
    taken = f"{number} is taken, as in the published models of width {width}"
    notes.append(f"the file does not record the number of heads: {taken}")
    return number
