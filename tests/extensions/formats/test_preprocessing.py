"""Images are prepared as transformers and timm prepare them, or the setting is named."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.errors import UserError
from vit.extensions.backbones.image_transform import ImageTransform
from vit.extensions.formats.convert import convert
from vit.extensions.formats.preprocessing import Inexpressible, from_huggingface, from_timm, to_timm
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 70, 3)).astype(np.uint8)
SIDE = {"height": 32, "width": 32}
CROP = {"size": {"shortest_edge": 40}, "crop_size": SIDE}


def prepared(values: Mapping[str, Any]) -> torch.Tensor:
    return ImageTransform(Preprocess.from_dict(values))(PIXELS)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ViT", {"size": SIDE}),
        ("ViT", {"size": SIDE, "do_normalize": False}),
        ("ViT", {"size": SIDE, "do_rescale": False}),
        ("ViT", {"size": SIDE, "do_rescale": False, "do_normalize": False}),
        ("ViT", {"size": SIDE, "rescale_factor": 1 / 127.5, "image_mean": [1.0, 1.0, 1.0]}),
        ("ViT", {"size": SIDE, "rescale_factor": 1 / 127.5, "do_normalize": False}),
        ("ViT", {"size": SIDE, "image_mean": [0.1, 0.2, 0.3], "do_center_crop": None}),
        ("ViT", {}),
        ("DeiT", {}),
        ("DeiT", {"size": {"height": 36, "width": 36}, "crop_size": SIDE}),
        ("Siglip", {"size": SIDE}),
        ("Bit", CROP),
        ("Bit", {"size": 40, "crop_size": 32}),
        ("CLIP", {}),
    ],
)
def test_images_are_those_of_transformers(kind: str, settings: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, f"{kind}ImageProcessorPil")(**settings)
    expected = theirs(Image.fromarray(PIXELS), return_tensors="pt")["pixel_values"][0].float()
    for name in (f"{kind}ImageProcessor", f"{kind}ImageProcessorFast", f"{kind}FeatureExtractor"):
        values = from_huggingface({"image_processor_type": name, **settings}, (7, 7))
        assert values is not None
        # Relative to the largest value: float32, in another order of operations.
        largest = expected.abs().max().item()
        torch.testing.assert_close(prepared(values), expected, rtol=0, atol=1e-6 * largest)
    assert from_huggingface(theirs.to_dict(), (7, 7)) == values


def random_photos(count: int) -> list[Image.Image]:
    """Blurred noise of odd and even sizes."""
    numbers = random.Random(0)
    sides = [(numbers.randint(20, 130), numbers.randint(20, 130)) for _ in range(count)]
    noise = np.random.default_rng(0).integers(0, 256, (20, 20, 3)).astype(np.uint8)
    whole = Image.fromarray(noise).resize((130, 130), Image.Resampling.BICUBIC)
    return [whole.crop((0, 0, width, height)) for height, width in sides]


# transformers' own back ends differ by 2 of 255 in bicubic resizes.
@pytest.mark.parametrize(("backend", "difference"), [("Pil", 0), ("", 2)])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ViT", {"size": SIDE}),
        ("DeiT", {"size": {"height": 37, "width": 37}, "crop_size": SIDE}),
        ("Bit", {"size": {"shortest_edge": 37}, "crop_size": SIDE}),  # DINOv2's kind, too
    ],
)
def test_every_photo_is_that_of_transformers(
    kind: str, settings: dict[str, Any], backend: str, difference: int
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, f"{kind}ImageProcessor{backend}")(**settings, do_normalize=False)
    values = from_huggingface({"image_processor_type": f"{kind}ImageProcessor", **settings}, (7, 7))
    assert values is not None
    ours = Preprocess.from_dict(values)
    for photo in random_photos(200):
        expected = theirs(photo, return_tensors="pt")["pixel_values"][0]
        assert (ours(photo) - 255 * expected).abs().max() < difference + 0.01, photo.size


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize(("mode", "crop_pct"), [("center", 0.9), ("squash", 0.87), ("border", 1.0)])
def test_every_photo_is_that_of_timm(mode: str, crop_pct: float, size: tuple[int, int]) -> None:
    timm = pytest.importorskip("timm")
    described = {
        **{"input_size": [3, *size], "crop_pct": crop_pct, "crop_mode": mode},
        **{"interpolation": "bicubic", "mean": [0.2, 0.5, 0.7], "std": [0.1, 0.5, 0.3]},
    }
    theirs = timm.data.create_transform(**{**described, "input_size": (3, *size)})
    values = from_timm(described)
    assert values is not None
    for photo in random_photos(200):
        shown = ImageTransform(Preprocess.from_dict(values))(photo)
        torch.testing.assert_close(shown, theirs(photo), rtol=0, atol=1e-5, msg=str(photo.size))
    again = to_timm(values)
    assert again["crop_mode"] == mode and from_timm({**described, **again}) == values


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("do_resize", False),
        ("do_flip_channel_order", True),
        ("crop_pct", 0.875),
        ("resample", 1),
        ("do_pad", True),
        ("image_processor_type", "MobileViTImageProcessor"),
        ("image_processor_type", "ConvNextImageProcessor"),
        ("size", {"longest_edge": 32}),
        ("crop_size", {"height": 64, "width": 64}),
        ("crop_size", {"height": 32, "width": 16}),
    ],
)
def test_a_setting_of_hugging_face_that_is_not_done_is_named(setting: str, value: object) -> None:
    values = {"size": {"shortest_edge": 40}, "crop_size": SIDE, "do_center_crop": True}
    with pytest.raises(Inexpressible, match=f"^{setting}=.* is not done here"):
        from_huggingface({**values, setting: value}, (32, 32))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("interpolation", "lanczos"), ("interpolation", "nearest"), ("crop_mode", "border")],
)
def test_a_setting_of_timm_that_is_not_done_is_named(setting: str, value: str) -> None:
    described = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, setting: value}
    with pytest.raises(Inexpressible, match=f"^{setting}='{value}' is not done here"):
        from_timm(described)


def test_weights_load_and_only_images_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a directory of each library, with a setting that is not done here."""
    torch.manual_seed(0)
    sizes = {"image_size": 32, "depth": 1, "width": 48, "mlp_dim": 96, "num_heads": 3}
    model = vit.create_model("vit_ti16", num_classes=3, activation="gelu", **sizes)  # pyright: ignore
    torch.nn.init.normal_(model.head.weight)  # pyright: ignore
    steps = Preprocess(image_size=(32, 32)).to_dict()
    save_native(tmp_path / "ours", model, classes=list("abc"), preprocess=steps, extra={})
    for to, file, part, setting in (
        ("huggingface", "preprocessor_config.json", None, {"do_resize": False}),
        ("timm", "config.json", "pretrained_cfg", {"interpolation": "lanczos"}),
    ):
        folder = tmp_path / to
        convert(tmp_path / "ours", folder, to)
        values = json.loads((folder / file).read_text())
        (values[part] if part else values).update(setting)
        (folder / file).write_text(json.dumps(values))
        [(name, value)] = setting.items()
        reason = f"how images are prepared is not known .{name}={value!r}"
        with pytest.raises(UserError, match=reason) as raised:
            vit.load(folder)
        assert "\n" not in str(raised.value)
        vit.create_model(pretrained=folder)
        assert f"prepared is not taken over: {name}={value!r}" in capsys.readouterr().err
