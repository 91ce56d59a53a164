"""ImageData for tests, with the options of its groups given flat."""

from typing import Any

from vit.data.module import ImageData
from vit.data.options import Loading, Splitting

GROUPS = {"splits": Splitting, "loading": Loading}


def image_data(*args: Any, **options: Any) -> ImageData:
    """`val_fraction=0.2` for `splits=Splitting(val_fraction=0.2)`, and so on."""
    for name, group in GROUPS.items():
        inside = {key: options.pop(key) for key in group.__dataclass_fields__ if key in options}
        if inside:
            options[name] = group(**inside)
    return ImageData(*args, **options)
