"""Features equal the model's, once per image; a cache entry is used only if everything is equal."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vit.data.decode import open_image
from vit.data.sources import ImageSet, PathList
from vit.errors import UserError
from vit.extensions.evaluation.features import Extractor, effective_rank, images_digest
from vit.preprocessing import Preprocess
from vit.weights import sealed as writing
from vit.weights.sealed import read_sealed, write_sealed


def by_hand(model, labelled_photos: Path, split: str, layer: str) -> tuple[np.ndarray, list[int]]:
    """Reference without a loader: folders in the order of the class names."""
    preprocess, rows, labels = Preprocess(image_size=(16, 16), crop_fraction=1.0), [], []
    for label, name in enumerate(sorted(os.listdir(labelled_photos / split))):
        for file in sorted((labelled_photos / split / name).iterdir()):
            pixels = preprocess.normalize(preprocess(open_image(file))[None])
            with torch.no_grad():
                pooled = model.pool(model.features(pixels))
                before = model.pre_logits(pooled)
                rows.append(
                    {"pooled": pooled, "pre_logits": before, "logits": model(pixels)}[layer]
                )
            labels.append(label)
    return torch.cat(rows).numpy(), labels


@pytest.mark.parametrize("layer", ["pooled", "pre_logits", "logits"])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_every_image_is_used_once_in_order_whatever_the_batch(
    make_model: Callable, make_data: Callable, labelled_photos: Path, layer: str, batch_size: int
) -> None:
    model = make_model(representation_size=10, dropout=0.5).train()
    found = Extractor(model, layer)(make_data(batch_size=batch_size), "train")
    assert not model.training
    values, labels = by_hand(model, labelled_photos, "train", layer)
    np.testing.assert_allclose(found.values, values, rtol=1e-5, atol=1e-5)
    assert found.labels.tolist() == labels and found.indices.tolist() == list(range(24))
    assert found.values.dtype == np.float32 and not found.cached


def test_a_second_call_reads_the_file_and_runs_no_model(
    make_model: Callable, make_data: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = Extractor(make_model(), "pooled", cache=cache)(make_data(), "train")
    assert not first.cached and len(list(cache.iterdir())) == 1
    model = make_model()
    monkeypatch.setattr(model, "features", None)
    second = Extractor(model, "pooled", cache=cache)(make_data(), "train")
    assert second.cached
    for name in ("values", "labels", "indices"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def change_weight(model):
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight[0, 0] += 1e-3
    return model


def prepared(**changes: Any) -> Preprocess:
    return Preprocess(**{"image_size": (16, 16), "crop_fraction": 1.0, **changes})


CHANGES = {
    "weight": lambda model, data: (change_weight(model()), data()),
    "head": lambda model, data: (model(num_classes=4), data()),
    "epsilon": lambda model, data: (model(layer_norm_eps=1e-3), data()),
    "positions": lambda model, data: (model(pos_resize="bicubic"), data()),
    "size": lambda model, data: (model(), data(preprocess=prepared(image_size=(24, 16)))),
    "crop": lambda model, data: (model(), data(preprocess=prepared(crop_fraction=0.8))),
    "mean": lambda model, data: (model(), data(preprocess=prepared(mean=(0.4, 0.5, 0.5)))),
    "images": lambda model, data: (model(), data(val_fraction=0.2)),
    "skipping": lambda model, data: (model(), data(on_error="skip")),
}


def test_a_change_of_any_dependency_leads_to_recomputation(
    make_model: Callable, make_data: Callable, labelled_photos: Path, tmp_path: Path
) -> None:
    Extractor(make_model(), "pooled", cache=tmp_path / "c")(make_data(), "train")
    for what in [*CHANGES, "precision", "layer", "split"]:
        build = CHANGES.get(what, lambda model, data: (model(), data()))
        model, data = build(make_model, make_data)
        precision = "float64" if what == "precision" else "float32"
        layer = "logits" if what == "layer" else "pooled"
        extractor = Extractor(model, layer, precision=precision, cache=tmp_path / "c")
        assert not extractor(data, "test" if what == "split" else "train").cached, what
    Image.new("RGB", (18, 14), "white").save(labelled_photos / "train" / "green" / "1.png")
    assert not Extractor(make_model(), "pooled", cache=tmp_path / "c")(make_data(), "train").cached


def of_other_images(file: Path) -> bytes:
    return next(path for path in file.parent.iterdir() if path != file).read_bytes()


def with_fewer_indices(file: Path) -> bytes:
    tensors, key = read_sealed(file)
    write_sealed(file, {**tensors, "indices": tensors["indices"][1:]}, key)
    return file.read_bytes()


DAMAGES = {
    "other shapes": with_fewer_indices,
    "truncated": lambda file: file.read_bytes()[:-9],
    "one bit": lambda file: (
        file.read_bytes()[:-200] + bytes([file.read_bytes()[-200] ^ 1]) + file.read_bytes()[-199:]
    ),
    "of other images": of_other_images,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_never_trusted(
    make_model: Callable,
    make_data: Callable,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], bytes],
) -> None:
    cache = tmp_path / "c"
    extractor = Extractor(make_model(), "pooled", cache=cache)
    good = extractor(make_data(), "train")
    [file] = cache.iterdir()
    extractor(make_data(), "test")
    file.write_bytes(damage(file))
    again = extractor(make_data(), "train")
    assert not again.cached and np.array_equal(good.values, again.values)
    assert f"note: {file} is damaged" in capsys.readouterr().err
    assert extractor(make_data(), "train").cached


def test_a_full_disk_costs_the_file_and_nothing_else(
    make_model: Callable,
    make_data: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def half(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_safetensors", half)
    found = Extractor(make_model(), "pooled", cache=tmp_path / "c")(make_data(), "train")
    assert len(found.values) == 24
    assert "could not be cached (No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "c").iterdir()) == []


def test_float32_is_not_rounded_to_tf32_on_the_way(
    make_model: Callable, make_data: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen, convolution = make_model(), [], torch.backends.cudnn.conv
    before, features = convolution.fp32_precision, model.features

    def spy(images: torch.Tensor) -> torch.Tensor:
        seen.append(convolution.fp32_precision)
        return features(images)

    monkeypatch.setattr(model, "features", spy)
    Extractor(model, "pooled")(make_data(), "test")
    assert set(seen) == {"ieee"} and convolution.fp32_precision == before


def test_unreadable_images_are_named_or_left_out_with_their_labels(
    make_model: Callable, make_data: Callable, labelled_photos: Path, tmp_path: Path
) -> None:
    (labelled_photos / "test" / "green" / "0.png").write_bytes(b"no image")
    extractor = Extractor(make_model(), "pooled", cache=tmp_path / "c")
    with pytest.raises(UserError, match=r"green.0\.png"):
        extractor(make_data(), "test")
    for cached in (False, True):
        found = extractor(make_data(on_error="skip"), "test")
        assert found.cached == cached
        assert found.indices.tolist() == [i for i in range(12) if i != 5]
        assert found.labels.tolist() == [0] * 5 + [1] * 2 + [2] * 4


def test_numbers_that_are_not_finite_and_a_missing_head_are_refused(
    make_model: Callable, make_data: Callable
) -> None:
    model = make_model()
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    with pytest.raises(UserError, match="not finite numbers in float32"):
        Extractor(model, "pooled")(make_data(), "test")
    with pytest.raises(UserError, match="no head"):
        Extractor(make_model(num_classes=0), "logits")


def test_pixels_in_memory_are_distinguished_by_their_bytes() -> None:
    names, labels = PathList(["a", "b"]), np.array([0, 1])
    pixels = np.zeros((2, 3, 3), dtype=np.uint8)
    first = images_digest(ImageSet(pixels.copy(), labels, names))
    assert first == images_digest(ImageSet(pixels.copy(), 1 - labels, names))
    pixels[1, 2, 2] = 1
    assert first != images_digest(ImageSet(pixels, labels, names))
    assert first != images_digest(ImageSet(np.zeros((2, 9, 1), np.uint8), labels, names))


def test_files_are_distinguished_by_order_size_and_time(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(b"12")
        os.utime(path, ns=(0, 5))
    labels = np.array([0, 1])

    def digest(*names: str) -> str:
        files = PathList(names, str(tmp_path))
        return images_digest(ImageSet(files, labels, files))

    first = digest("a", "b")
    assert first == digest("a", "b") != digest("b", "a")
    os.utime(paths[0], ns=(0, 6))
    second = digest("a", "b")
    paths[1].write_bytes(b"123")
    os.utime(paths[1], ns=(0, 5))
    assert len({first, second, digest("a", "b")}) == 3


def orthonormal(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q


@pytest.mark.parametrize("directions", [1, 2, 7])
def test_the_effective_rank_of_equal_directions_is_their_number(directions: int) -> None:
    features = 3 * orthonormal(9)[:, :directions] @ orthonormal(12)[:directions]
    assert effective_rank(features) == pytest.approx(directions, rel=1e-9)


def test_the_effective_rank_is_exp_of_the_entropy_of_the_singular_values() -> None:
    features = orthonormal(6)[:, :2] @ torch.diag(torch.tensor([3.0, 1.0]).double())
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(features) == pytest.approx(math.exp(entropy), rel=1e-9)


def test_equal_features_have_rank_one_and_broken_ones_none() -> None:
    assert effective_rank(torch.randn(1, 8).expand(5, 8)) == pytest.approx(1, abs=1e-5)
    assert effective_rank(torch.zeros(5, 8)) == 1
    assert effective_rank(torch.full((5, 8), math.nan)) == 0
