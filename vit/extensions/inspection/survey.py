"""The files that `vit inspect` writes: figures of the parameters and of each photo, and a page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure

from vit.errors import UserError
from vit.extensions.inspection import figures
from vit.extensions.inspection.capture import has_attention
from vit.extensions.inspection.looks import Look, look
from vit.extensions.inspection.maps import attention_distance, head_entropy, prefix_names
from vit.extensions.inspection.page import inspection_page, page_image
from vit.extensions.inspection.parameters import embedding_filters, position_similarity
from vit.extensions.inspection.subject import Subject, open_photo
from vit.extensions.reports.drawing import png
from vit.models.zoo import Model
from vit.writing import write_bytes, write_text

SHOWN = 8
"""Photos with figures of their own, and on the page."""
AVERAGED = 128
"""Photos over which distance and entropy are averaged (ViT, appendix D.7)."""
FEW = 16
"""Values of a map below which it shows little but their interpolation."""


@dataclass
class Survey:
    """The files in the folder `out`, and notes about what is missing."""

    out: Path
    written: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self, name: str, figure: Figure) -> None:
        write_bytes(self.out / f"{name}.png", png(figure))
        self.written.append(self.out / f"{name}.png")


def survey(
    subject: Subject,
    name: str,
    paths: Sequence[Path],
    out: Path,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    label: int | None = None,
) -> Survey:
    """Inspects a model with photos and writes the files into the folder `out`.

    `layers` and `heads`: indices; by default four layers and all heads. `label`: the class to
    explain; by default each photo's predicted one.
    """
    model, result, tokens = subject.model, Survey(out), []
    indices, chosen = _layers_and_heads(model, name, layers, heads)
    if has_attention(model):
        tokens = prefix_names(model)
        _parameters(model, result)
    elif not paths:
        raise UserError(f"{name} is a ResNet without attention; give images for Grad-CAM")
    images, averages = [], []
    for i, path in enumerate(paths[:AVERAGED]):
        photo = open_photo(subject, path)
        if indices:
            distances = attention_distance(model, photo.pixels)[0]
            averages.append(torch.stack([distances, head_entropy(model, photo.pixels)[0]]))
        seen = look(subject, photo, indices, chosen, label) if i < SHOWN else None
        if seen is not None:  # its weights may take hundreds of megabytes: nothing keeps them
            _figures(seen, f"{i + 1:02}_{path.stem}", result)
            images.append(page_image(seen, model.patch_size))
    if averages:
        _averages(averages, result)
    if images:
        size = "x".join(map(str, subject.preprocess.image_size))
        about = f"{len(images)} images of {size} pixels"
        html = inspection_page(name, about, images, tokens)
        write_text(out / "inspection.html", html)
        result.written.append(out / "inspection.html")
        rows, columns = (side // model.patch_size for side in subject.preprocess.image_size)
        if rows * columns < FEW:
            result.notes.append(f"maps have {rows} x {columns} values; the rest is interpolated")
    result.notes += _left_out(model, len(paths))
    return result


def _layers_and_heads(
    model: Model, name: str, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Indices of those that are shown; none of a ResNet. UserError for one that there is not."""
    if not has_attention(model):
        if layers is not None or heads is not None:
            option = "--layers" if layers is not None else "--heads"
            raise UserError(f"{option}: {name} is a ResNet without attention; leave the option out")
        return [], []
    depth = model.config.depth
    spread = sorted({depth * (i + 1) // 4 - 1 for i in range(4) if depth * (i + 1) >= 4})
    all_heads = list(range(model.config.num_heads))
    chosen = _chosen("heads", heads, len(all_heads)) or all_heads
    return _chosen("layers", layers, depth) or spread, chosen


def _averages(values: list[torch.Tensor], result: Survey) -> None:
    """Draws the mean distance and entropy of attention over photos, by depth."""
    title = f"mean over {len(values)} image{'s' * (len(values) != 1)}"
    distance, entropy = torch.stack(values).mean(0)
    drawn = figures.by_depth(distance, "mean attention distance, pixels", title)
    result.write("attention_distance", drawn)
    drawn = figures.by_depth(entropy, "entropy of attention, nats", title)
    result.write("head_entropy", drawn)


def _chosen(name: str, wanted: Sequence[int] | None, count: int) -> list[int]:
    """Ascending indices below `count`; negative ones count from the end. UserError for others."""
    for index in wanted or ():
        if not -count <= index < count:
            raise UserError(f"--{name} {index}: the model has {name} 0 to {count - 1}")
    return sorted({index % count for index in wanted or ()})


def _parameters(model: Model, result: Survey) -> None:
    for name, compute, draw in (
        ("filters", embedding_filters, figures.filters),
        ("positions", position_similarity, figures.positions),
    ):
        try:
            result.write(name, draw(compute(model)))
        except UserError as error:  # this model has none
            result.notes.append(f"no {name}.png: {error}")


def _figures(look: Look, name: str, result: Survey) -> None:
    result.write(
        name,
        figures.overview(look.pictures, ": ".join(filter(None, (look.photo.name, look.answer)))),
    )
    if look.weights is not None:
        result.write(f"{name}_heads", figures.head_maps(look.maps, look.layers, look.heads))


def _left_out(model: Model, count: int) -> list[str]:
    """Notes for `count` photos."""
    notes = []
    if count > SHOWN:
        notes.append(f"the first {SHOWN} of {count} images are shown")
    if count > AVERAGED:
        notes.append(f"distance and entropy are averaged over the first {AVERAGED} images")
    if count and has_attention(model):
        if not model.config.num_classes:
            notes.append("the model has no classes, so no relevance for a class")
        if model.config.pool == "map":
            notes.append("the model pools by attention, so no rollout and no relevance for a class")
    return notes
