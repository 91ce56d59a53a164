"""The page on which a reader chooses a photo, a layer and a head, and points at a patch.

Photos are JPEG and maps are grey PNG files within it. A map has a row per query and a column per
key: prefix tokens first, then cells, which are squares of patches in grids of more than CELLS.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vit.extensions.inspection.looks import Look
from vit.extensions.reports.page import address, page

CELLS = 400
"""Largest number of cells, so that a map is at most 160 kB before compression."""


def inspection_page(
    name: str, about: str, images: Sequence[Mapping[str, object]], prefix_names: Sequence[str]
) -> str:
    """The document. `images`: `page_image` of each photo; `about`: the line below the title."""
    return page(
        "inspection/page.html",
        script=Path(__file__).with_name("page.js").read_text("utf-8"),
        name=name,
        kind="inspection",
        about=about,
        data={"tokens": list(prefix_names), "images": list(images)},
    )


def page_image(look: Look, patch_size: int) -> dict[str, Any]:
    """Data of a photo for the script."""
    picture = look.photo.picture
    values: dict[str, Any] = {
        "name": look.photo.name,
        "answer": look.answer,
        "size": picture.size,
        "photo": _jpeg(picture),
        "pictures": [[name, _jpeg(shown)] for name, shown in look.pictures[1:]],
        "layers": {},
    }
    if look.weights is None or look.similarity is None:
        return values
    gh, gw = look.grid
    side = 1
    while -(-gh // side) * -(-gw // side) > CELLS:
        side += 1
    values |= {"cell": side * patch_size, "grid": [-(-gh // side), -(-gw // side)]}
    values["unit"] = "patch" if side == 1 else f"cell of {side}x{side} patches"
    for layer, heads in zip(look.layers, look.weights, strict=True):
        named = {f"head {h}": weights for h, weights in zip(look.heads, heads, strict=True)}
        if len(named) > 1:
            named = {"mean": heads.mean(0), **named}
        values["layers"][f"layer {layer}"] = {
            head: _map(weights, look.prefix, look.grid, side) for head, weights in named.items()
        }
    similarity = look.similarity.flatten(2).flatten(0, 1).clamp_min(0)
    values["layers"]["feature similarity"] = {"all": _map(similarity, 0, look.grid, side)}
    return values


def quantised(weights: Tensor, prefix: int, grid: tuple[int, int], side: int) -> Tensor:
    """Attention `n n` as uint8 `p+cells p+cells`.

    Shares of prefix tokens are in 1/255; a row's cells are in 1/255 of its largest cell.
    """
    weights = _cells(_cells(weights.float().cpu(), prefix, grid, side).T, prefix, grid, side).T
    apart, cells = weights[:, :prefix], weights[:, prefix:]
    cells = cells / cells.amax(1, keepdim=True).clamp_min(1e-12)
    return (torch.cat([apart, cells], 1).clamp(0, 1) * 255).round().byte()


def _cells(rows: Tensor, prefix: int, grid: tuple[int, int], side: int) -> Tensor:
    """Averages rows `n m` over squares of patches; rows of prefix tokens stay."""
    patches = rows[prefix:].T.unflatten(1, grid)[:, None]
    pooled = F.avg_pool2d(patches, side, ceil_mode=True, count_include_pad=False)
    return torch.cat([rows[:prefix], pooled.flatten(1).T])


def _map(weights: Tensor, prefix: int, grid: tuple[int, int], side: int) -> dict[str, Any]:
    out = BytesIO()
    image = Image.fromarray(quantised(weights, prefix, grid, side).numpy())
    image.save(out, "PNG", optimize=True)
    return {"prefix": prefix, "src": address(out.getvalue())}


def _jpeg(picture: Image.Image) -> str:
    out = BytesIO()
    picture.save(out, "JPEG", quality=80)
    return address(out.getvalue(), "jpeg")
