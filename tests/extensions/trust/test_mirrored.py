"""`vit classify --tta`: the mean of the probabilities of a picture and of its mirror image."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import vit as package
from tests.command import Vit, photos, saved, table, vit
from vit.extensions.trust.mirrored import Mirrored, mirrored
from vit.inference.answers import PredictOptions

__all__ = ["photos", "vit"]


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Three pictures of the model's size, so that nothing is resized or cut."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, picture in zip(paths, pixels, strict=True):
        Image.fromarray(picture).save(path)
    return paths


def mean_of(model: str, path: Path, activation: torch.nn.Module) -> np.ndarray:
    """Probabilities by a loop of its own over the picture and the one that Pillow mirrors."""
    net, probabilities = package.load(model).model, []
    with Image.open(path) as picture:
        for view in (picture, ImageOps.mirror(picture)):
            values = torch.from_numpy(np.array(view)).permute(2, 0, 1)[None] / 255
            with torch.no_grad():
                probabilities.append(activation(net((values - 0.5) / 0.5))[0].numpy())
    return np.mean(probabilities, axis=0)


def test_probabilities_are_the_mean_over_a_picture_and_its_mirror(
    vit: Vit, pictures: list[Path]
) -> None:
    saved(Path("model"))
    done = vit("classify", "model", *pictures, "--tta", "--json")
    plain = json.loads(vit("classify", "model", *pictures, "--json").out)
    assert done.status == 0 and json.loads(done.out) != plain
    classes = package.load("model").classes
    for path, answer in zip(pictures, json.loads(done.out), strict=True):
        expected = mean_of("model", path, torch.nn.Softmax(-1))
        shares = {best["class"]: best["probability"] for best in answer["top"]}
        assert [shares[name] for name in classes] == pytest.approx(expected.tolist(), abs=2e-6)
    assert vit("classify", "model", *pictures, "--tta", "--out", "a.csv").status == 0
    assert [float(row["probability"]) for row in table("a.csv")] == pytest.approx(
        [answer["top"][0]["probability"] for answer in json.loads(done.out)], abs=1e-6
    )
    again = vit("classify", "model", *pictures, "--out", "a.csv")
    assert again.status == 2 and "was begun with tta True, not False" in again.err


def test_answers_of_another_exported_file_are_not_continued(vit: Vit, pictures: list[Path]) -> None:
    pytest.importorskip("openvino")
    for seed in (0, 1):
        saved(Path(f"m{seed}"), seed=seed)
    tta = (*pictures, "--tta", "--engine", "openvino", "--out", "a.csv")
    assert vit("classify", "m0", *tta).status == 0
    again = vit("classify", "m1", *tta)
    assert again.status == 2 and "was begun with weights" in again.err, again.err


def test_the_mean_of_several_labels_and_of_far_logits_is_exact(
    vit: Vit, pictures: list[Path]
) -> None:
    saved(Path("several"), extra={"multilabel": True, "temperature": 1.0})
    classifier = mirrored(package.load("several"), PredictOptions())
    for path in pictures:
        expected = mean_of("several", path, torch.nn.Sigmoid())
        assert classifier.probabilities([path])[0].numpy() == pytest.approx(expected, abs=2e-6)
    far = mirrored(package.load("several").at(0.5), PredictOptions())
    assert isinstance(far, Mirrored)
    far.plain.model.head.weight.data *= 1e4  # type: ignore[union-attr]
    assert far.probabilities([*pictures]).isfinite().all()


@pytest.mark.parametrize("option", ["coverage", "unknown"])
def test_what_was_measured_on_single_pictures_is_refused(option: str, vit: Vit) -> None:
    saved(Path("model"))
    asked = PredictOptions(numbers={option: 0.9})
    with pytest.raises(
        ValueError, match=f"--tta changes .* --{option} 0.9 was measured; leave one"
    ):
        mirrored(package.load("model"), asked)
