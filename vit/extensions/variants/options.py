"""Options of the parts, as frozen dataclasses whose values are checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.encoder import Block
from vit.models.fields import check_kinds

Grid = tuple[int, int]
Change = Callable[[Any, ViTConfig, list[Block]], None]
"""Changes the list of the paper's layers, or modules in them, in place, by a part's options."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a part; itself for a part that has none."""

    from_zero: ClassVar[tuple[str, ...]] = ()
    """Whole numbers that may be 0; others are at least 1."""

    def __post_init__(self) -> None:
        """UserError for a value that is none of its type, or too small."""
        check_kinds(self)
        for name, hint in get_type_hints(type(self)).items():
            if hint not in (int, int | None) or (value := vars(self)[name]) is None:
                continue
            low = int(name not in self.from_zero)
            if type(value) is not int or value < low:
                raise UserError(f"{name}={value!r} must be a whole number of at least {low}")


@dataclass(frozen=True, kw_only=True)
class Sized(Options):
    """Options of tables that are made for one grid."""

    size: int | Grid | None = None
    """Rows and columns of that grid, or one number for both; default: those of `image_size`. For
    other grids the table is resampled by `pos_resize`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
            if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
                raise UserError(f"size={self.size!r} must be whole numbers above 0: rows, columns")
            object.__setattr__(self, "size", sides)
