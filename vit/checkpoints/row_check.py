"""Whether a file is the one that a row of the table of published weights describes."""

from dataclasses import replace
from pathlib import Path

from vit.checkpoints import published
from vit.checkpoints.adapt import same_architecture
from vit.checkpoints.detect import recognise
from vit.checkpoints.files import check_answer, check_archive, open_weights
from vit.checkpoints.layout import Recognised
from vit.checkpoints.published import Published
from vit.errors import UserError
from vit.models.zoo import model_config

_FORMATS = {
    "google": ("Google npz", "BiT npz"),
    "timm": ("timm", "DINOv2"),
    "torchvision": ("torchvision",),
}
"""Format of a row -> those that its file is recognised as."""
_TOLERANCE = 0.1
"""Relative; sizes are estimated from the parameters, and a head of zeros may be left out."""


def check_file(row: Published, path: Path) -> None:
    """UserError unless a complete file is the row's: size, archive, layout."""
    check_answer(path)
    check_layout(row, recognise(replace(open_weights(path), hints=row.facts)), f"{path}")
    check_archive(path)
    size = path.stat().st_size
    if abs(size / row.bytes - 1) > _TOLERANCE:
        raise UserError(f"{path} has {size:,} bytes instead of about {row.bytes:,}")


def check_layout(row: Published, recognised: Recognised, source: str) -> None:
    """UserError where format, architecture or outputs are not the row's."""
    config = recognised.config
    differing = same_architecture(config, model_config(row.architecture))
    if differing:
        raise UserError(
            f"{source} is not a {row.architecture}: it has {', '.join(differing)}"
            f"{weights_of(row.architecture)}"
        )
    if row.outputs and config.num_classes != row.outputs:
        raise UserError(
            f"{source} is not {row.name}: it has {config.num_classes:,} outputs instead of "
            f"{row.outputs:,}"
        )
    if recognised.format not in _FORMATS[row.format]:
        raise UserError(
            f"{source} is not {row.name}: it has the layout of {recognised.format} instead of "
            f"{row.format}'s"
        )


def weights_of(architecture: str) -> str:
    """'; published weights of vit_s16: ...', or an empty string where there are none."""
    rows = published.table().values()
    names = [row.name for row in rows if row.architecture == architecture]
    return f"; published weights of {architecture}: {', '.join(names)}" if names else ""
