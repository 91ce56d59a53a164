"""Shape annotations: `Float[Tensor, "b n d"]`.

jaxtyping, a test dependency, checks them under pytest; without it they are plain types.
Letters: b batch, c channels, h w pixels or patches, n tokens, d width, k classes.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
else:
    try:
        from jaxtyping import Float, Int
    except ImportError:

        class Float:
            def __class_getitem__(cls, item: tuple[type, str]) -> Any:
                return item[0]  # `Float[Tensor, "b n d"]` is `Tensor`

        Int = Float
