"""vit.knn and others: commands as functions, with the results of independent sources."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier

import vit
from tests.command import saved
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

OPTIONS: dict[str, Any] = {"num_workers": 0, "cache": "features"}


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An encoder, and two classes of noise around two greys."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    network = vit.create_model(
        "vit_ti16", num_classes=0, image_size=16, patch_size=8, width=16, depth=1, num_heads=2
    )
    preprocess = Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict()
    save_native(Path("encoder"), network, classes=None, preprocess=preprocess, extra={})
    rng = np.random.default_rng(0)
    for split, count in {"train": 12, "val": 4, "test": 12}.items():
        for name, grey in {"dark": 105, "light": 125}.items():
            folder = Path("data", split, name)
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.normal(grey, 60, (16, 16, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return Path("encoder")


def features(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and classes of a split, image by image."""
    network = vit.create_model(pretrained="encoder").eval()
    transform, folders = vit.transforms(network), sorted(Path("data", split).iterdir())
    pairs = [(path, i) for i, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    with torch.no_grad():
        vectors = [network(transform(path)[None])[0].double().numpy() for path, _ in pairs]
    return np.stack(vectors), np.array([label for _, label in pairs])


def test_neighbours_are_those_of_scikit_learn(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = vit.knn(model, "data", k=[1, 5], temperature=1e6, **OPTIONS)
    assert capsys.readouterr().out == ""
    (x, y), (queries, labels) = features("train"), features("test")
    for row in result["rows"]:
        neighbours = KNeighborsClassifier(row["k"], metric="cosine").fit(x, y)
        assert row["accuracy"] == pytest.approx(neighbours.score(queries, labels))
    assert result["train_images"] == len(y) and result["test_images"] == len(labels)


def test_few_shots_are_those_of_a_ridge_regression_on_all_images(model: Path) -> None:
    result = vit.fewshot(model, "data", shots=12, seeds=1, l2=1e-3, **OPTIONS)
    [row] = result["rows"]
    (x, y), (queries, labels) = features("train"), features("test")
    ours = RidgeClassifier(alpha=1e-3).fit(x - x.mean(0), y).score(queries - x.mean(0), labels)
    assert row["shots"] == 12 and row["mean"] == pytest.approx(ours, abs=1 / len(labels))


def test_a_probe_reports_its_choice(model: Path) -> None:
    result = vit.probe(model, "data", num_c=3, **OPTIONS)
    assert [row["c"] for row in result["sweep"]] == pytest.approx([1e-6, 10**-0.5, 1e5])
    assert result["chosen_on"] == "val" and 0.5 <= result["accuracy"] <= 1


def test_a_copy_is_found() -> None:
    before = {finding["kind"] for finding in vit.check("data", out="before")["findings"]}
    shutil.copy("data/train/dark/00.png", "data/test/dark/copy.png")
    after = {finding["kind"]: finding for finding in vit.check("data", out="after")["findings"]}
    [kind] = after.keys() - before
    assert after[kind]["count"] == 1 and "leak" in kind and Path("after/findings.html").is_file()


def test_pictures_of_a_model_are_files(model: Path) -> None:
    written = vit.inspect(model, "data/test/dark/00.png", out="looks", layers=[0])
    assert {path.name for path in written} >= {"01_00.png", "inspection.html"}
    assert all(path.is_file() and path.parent == Path("looks") for path in written)


def test_a_mistake_is_that_of_the_command(model: Path) -> None:
    with pytest.raises(UserError, match="unrecognized arguments: --neighbours=3; see `vit knn"):
        vit.knn(model, "data", neighbours=3)
    with pytest.raises(UserError, match="data folder nowhere does not exist"):
        vit.check("nowhere")
    for option in ({"nosuch": False}, {"temprature": None}, {"help": True}):
        with pytest.raises(UserError, match=r"\w+=\w+: leave it out"):
            vit.knn(model, "data", **option)


def test_training_transforms_refuse_what_they_do_not_use(model: Path) -> None:
    network = vit.create_model(pretrained=model)
    for name, value in {
        "crop_fraction": 0.5,
        "resize": "squash",
        "interpolation": "bicubic",
    }.items():
        with pytest.raises(UserError, match=f"{name} is of evaluation images"):
            vit.transforms(network, training=True, **{name: value})
    with pytest.raises(UserError, match="training='yes' must be True, False"):
        vit.transforms(network, training="yes")  # pyright: ignore[reportArgumentType]


def test_training_transforms_cut_every_window_alike(model: Path) -> None:
    network = vit.create_model(pretrained=model)
    step = np.zeros((20, 20, 3), np.uint8)
    step[:, :, 0], step[:, :, 1] = np.arange(20)[:, None] * 10, np.arange(20)[None] * 10
    transform = vit.transforms(
        network, training=TrainTransform(crop="resize_random", resize_size=20, flip=False)
    )
    torch.manual_seed(0)
    corners = torch.stack([transform(Image.fromarray(step))[:2, 0, 0] for _ in range(1500)])
    for places in corners.unbind(1):
        counts = places.unique(return_counts=True)[1]
        assert len(counts) == 5 and counts.min() > 240 and counts.max() < 360
    with pytest.raises(UserError, match="resize_size=8 is smaller"):
        vit.transforms(network, training=TrainTransform(crop="resize_random", resize_size=8))


def test_training_transforms_cut_and_mirror_by_the_generator_of_torch(model: Path) -> None:
    network = vit.create_model(pretrained=model)
    plain = Image.new("RGB", (40, 30), (51, 102, 204))
    pixels = vit.transforms(network, training=True)(plain)
    assert pixels.shape == (3, 16, 16)
    expected = torch.tensor([51, 102, 204])[:, None, None] / 255 * 2 - 1
    torch.testing.assert_close(pixels, expected.expand_as(pixels))
    ramp = Image.fromarray(np.tile(np.arange(0, 240, 6, dtype=np.uint8), (40, 1))).convert("RGB")
    transform = vit.transforms(network, training=TrainTransform(crop_area=(0.5, 0.5)))
    torch.manual_seed(0)
    rises = torch.stack([transform(ramp)[0, 8].diff().mean() for _ in range(200)])
    mirrored = float((rises < 0).double().mean())
    assert 0.4 < mirrored < 0.6 and len(rises.abs().unique()) > 10
    torch.manual_seed(0)
    torch.testing.assert_close(transform(ramp)[0, 8].diff().mean(), rises[0])


def test_a_network_is_saved_as_a_folder() -> None:
    network = vit.create_model("vit_ti16", num_classes=2, image_size=16, width=15, depth=1).eval()
    torch.nn.init.normal_(network.head.weight)  # pyright: ignore
    images = torch.rand(2, 3, 16, 16)
    folder = vit.save(network, "saved", classes=["cat", "dog"])
    again = vit.create_model(pretrained=folder).eval()
    assert torch.equal(again(images), network(images))
    classifier = vit.load(folder)
    assert classifier.classes == ["cat", "dog"] and classifier.preprocess.mean == (0.5, 0.5, 0.5)
    with pytest.raises(UserError, match="3"):
        vit.save(network, "other", classes=["cat", "dog", "frog"])


def test_a_network_is_saved_with_what_its_outputs_are(capsys: pytest.CaptureFixture[str]) -> None:
    classes = ["x", "y", "z"]
    facts = {"multilabel": True, "thresholds": [0.1, 0.5, 0.9], "temperature": 2.0}
    network = vit.create_model(pretrained=saved(Path("several"), classes, extra=facts))
    vit.save(network, "again", classes=classes)
    assert "temperature and thresholds of the weights are not saved" in capsys.readouterr().err
    image = np.zeros((16, 16, 3), np.uint8)
    [answer] = vit.load("again")(image)
    assert answer.labels is not None and sum(share for _, share in answer.top) != pytest.approx(1)
    network.reset_classifier(2)  # whose outputs are others
    torch.nn.init.normal_(network.head.weight)  # pyright: ignore
    vit.save(network, "fresh", classes=["cat", "dog"])
    [answer] = vit.load("fresh")(image)
    assert sum(share for _, share in answer.top) == pytest.approx(1)
    for kind in ("projection", "regression"):
        network = vit.create_model(pretrained=saved(Path(kind), classes, extra={kind: True}))
        with pytest.raises(UserError, match=f"is a {kind}"):
            vit.load(vit.save(network, f"{kind}_again"))
        head = vit.create_model(pretrained=kind, num_classes=2)
        torch.nn.init.normal_(head.head.weight)  # pyright: ignore
        assert vit.load(vit.save(head, f"{kind}_new", classes=["cat", "dog"])).classes


def test_a_network_is_not_saved_with_a_guess() -> None:
    save_file(vit.create_model("vit_ti16", num_classes=2).state_dict(), "bare.safetensors")
    network = vit.create_model(pretrained="bare.safetensors")
    with pytest.raises(UserError, match="these weights do not record their normalisation"):
        vit.save(network, "guessed")
    assert not Path("guessed").exists()
    halves = {"mean": (0.4, 0.4, 0.4), "std": (0.2, 0.2, 0.2)}
    again = vit.create_model(pretrained=vit.save(network, "saved", **halves))
    assert vit.transforms(again).preprocess.mean == (0.4, 0.4, 0.4)
    with pytest.raises(UserError, match="a model of this package, not Linear"):
        vit.save(torch.nn.Linear(2, 2), "other")  # pyright: ignore[reportArgumentType]
