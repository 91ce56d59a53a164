"""Mistakes in the choice of parts: one line that names the part, the value and what to do."""

from typing import Any

import pytest

from tests.extensions.variants.test_contract import SIZE, built
from tests.models.small_models import SMALL, random_images
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.zoo import build_model

# A model of 4 x 6 patches, three prefix tokens and twelve layers.
FIELDS: dict[str, Any] = {**SMALL, "image_size": SIZE, "num_registers": 2, "depth": 12}
FUNNEL = {"name": "funnel", "stages": 2}
MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (3, {}, "variant=3 is not an object of parts by kind"),
    ({"position": "none"}, {}, "variant has no kind 'position'; did you mean 'positions'"),
    ({"positions": "relativ"}, {}, "positions='relativ' is not known; did you mean 'relative'"),
    ({"positions": "zzz"}, {}, "is not known; choose none, learned, learned2d, sinusoids"),
    ({"positions": {}}, {}, "variant.positions={} has no name; choose none"),
    ({"mixer": 2}, {}, "variant.mixer=2 has no name; .* {name: softmax, ...}"),
    ({"positions": {"name": "relative", "siz": 4}}, {}, "relative: .*'siz'; did you mean 'size'"),
    ({"positions": {"name": "relative", "size": 0}}, {}, "size=0 must be whole numbers above 0"),
    ({"positions": {"name": "learned", "size": [4]}}, {}, "must be whole numbers above 0"),
    ({"positions": {"name": "learned", "where": "all"}}, {}, "where='all' is not one of 'stem'"),
    ({"positions": {"name": "shaw", "k": -1}}, {}, "k=-1 must be a whole number of at least 0"),
    ({"mlp": {"name": "experts", "experts": 0}}, {}, "experts=0 must be a whole number of .* 1"),
    ({"mlp": {"name": "experts", "chosen": 1.5}}, {}, "chosen=1.5 must be a whole number"),
    ({"mlp": {"name": "experts", "chosen": 5}}, {}, r"experts \(4\); choose at most 4"),
    ({"mlp": {"name": "experts", "capacity": 0}}, {}, "capacity=0"),
    ({"mlp": {"name": "experts", "expert": "tanh"}}, {}, "expert='tanh' is not known"),
    ({"mlp": "none", "residual": "none"}, {}, "nothing is left of an image .*: set drop_path=0"),
    ({"mlp": "experts", "residual": "fixup"}, {}, "leave out variant.mixer, and mlp=none or"),
    ({"residual": "none"}, {"drop_path": 0.1}, "set drop_path=0"),
    ({"residual": "rezero"}, {"layer_scale": 0.1}, "rezero, and layer_scale=0.1 both scale"),
    ({"stack": {"name": "funnel", "stages": 13}}, {}, "stages=13 are more than the depth, 12"),
    ({"stack": {"name": "funnel", "stages": 3}}, {}, "4x6 .* divided by 4; .* of 32 pixels"),
    ({"stem": {"name": "convolutions", "widths": []}}, {}, "widths=.* one block or more"),
    ({"stem": {"name": "convolutions", "widths": [8, 0]}}, {}, "widths=.* whole numbers above 0"),
    ({"stem": {"name": "convolutions", "widths": [8] * 4}}, {}, "patch_size=8 is not .* of 16"),
    ({"stem": "convolutions"}, {"stem_depths": [1]}, "leave out stem_depths"),
    ({"stack": "funnel"}, {"rotary": {}}, "rotary positions are of the whole grid"),
    ({"stack": FUNNEL, "mixer": {"name": "linformer", "k": 4}}, {}, "4 x 6 .* read 2 x 3"),
    ({"stack": FUNNEL, "mixer": {"name": "window", "size": 2}}, {}, "do not divide the 2 x 3"),
    ({"stack": FUNNEL, "mixer": {"name": "bigbird", "block": 4}}, {}, "9 tokens make 3; lower"),
    ({"stack": "shared"}, {"drop_path": 0.1}, "drop_path=0.1 is of each layer"),
    ({"stack": "shared", "mlp": "experts"}, {}, "the balance loss of experts is of each layer"),
    ({"stack": "shared", "mixer": {"name": "window", "size": 2}}, {}, "differs from layer to lay"),
    ({"stack": "shared", "mixer": {"name": "axial", "axes": "alternate"}}, {}, "or axes: both"),
    (
        {"mixer": {"name": "window", "size": 3}}, {},
        r"size=\[3, 3\] do not divide the 4 x 6 patches; choose rows from 1, 2, 4, and columns "
        "from 1, 2, 3, 6",
    ),
    ({"mixer": {"name": "linformer", "k": 28}}, {}, "k=28 is more than the 27 tokens"),
    ({"mixer": {"name": "linformer", "k": 4, "size": 4}}, {}, "4 x 4 patches, and cannot read 4"),
    ({"mixer": {"name": "softmax", "head_size": 0}}, {}, "head_size=0 must be a whole number of"),
    ({"mixer": {"name": "softmax", "causal": True}}, {}, "comes first and would see no patch"),
    ({"mixer": {"name": "gru", "two_way": False}}, {}, "{class_token: false, pool: gap}"),
    ({"mixer": {"name": "lstm", "two_way": 1}}, {}, "two_way=1 must be true or false"),
    ({"mixer": {"name": "bigbird", "block": 16}}, {}, "need 5 blocks, and 27 tokens make 2"),
    ({"mixer": {"name": "bigbird", "block": 2}}, {}, "block=2 is fewer than the 3 prefix tokens"),
    ({"mixer": {"name": "bigbird", "window": 2}}, {}, "window=2 must be odd"),
    ({"mixer": {"name": "convolution", "kernel": 4}}, {}, "kernel=4 must be odd"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "fields", "message"), MISTAKES)
def test_a_mistake_is_one_line(parts: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_model(ViTConfig(**{**FIELDS, **fields}, variant=parts))
    assert "\n" not in str(caught.value)


def test_an_image_that_a_funnel_cannot_halve_is_refused() -> None:
    model = built("stack", "funnel", {})
    with pytest.raises(UserError, match=r"grid of 5x6 .* multiples of 16 pixels"):
        model(random_images(1, 3, 40, 48))
