"""`vit trust`: the score of unknown images is chosen for a finished run when a person asks."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import logsumexp
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

import vit as package
from tests.command import CLASSES, TINY, Vit, coloured, saved
from tests.extensions.trust.conftest import several_labels, with_val
from vit.cli.main import main
from vit.confidence import TRUST
from vit.extensions.trust.rejection import Choice
from vit.extensions.trust.trust import Trust
from vit.extensions.trust.unknown import SCORES
from vit.runs.directory import locked
from vit.weights.sealed import read_sealed

STORED = Path("run/model", TRUST)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and its pictures; one of val has another's label."""
    home = tmp_path_factory.mktemp("finished")
    root = with_val(coloured(home / "photos"), home / "split")
    (root / "val/red/11.jpg").rename(root / "val/blue/red.jpg")
    words = ["fit", "-c", "cifar10", "--data", str(root), "--steps=9", *TINY]
    assert main([*words, "--run-dir", str(home / "run")]) == 0
    return home


@pytest.fixture
def split(vit: Vit, finished: Path) -> Path:
    """Copies of the pictures and, in the folder run, of the run."""
    for name in ("split", "run"):
        shutil.copytree(finished / name, name)
    return Path("split")


def network(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and features of unit length, by the network alone."""
    loaded: Any = package.load("run")
    steps, model = loaded.preprocess, loaded.model
    with torch.inference_mode():
        pixels = steps.normalize(torch.stack([steps(Image.open(path)) for path in paths]))
        features = model.forward_head(model.forward_features(pixels), pre_logits=True)
        logits, features = model(pixels).double().numpy(), features.double().numpy()
    return logits, features / np.linalg.norm(features, axis=1, keepdims=True)


def plain_scores(train: list[Path], paths: list[Path]) -> dict[str, np.ndarray]:
    """By NumPy and scikit-learn; the features are fewer than the principal directions kept."""
    (_, known), (logits, features) = network(train), network(paths)
    names = np.array([path.parent.name for path in train])
    means = {name: known[names == name].mean(0) for name in set(names)}
    within = known - np.stack([means[name] for name in names])
    covariance = LedoitWolf(assume_centered=True).fit(within).covariance_
    precision = np.linalg.inv(covariance + 1e-6 * np.eye(len(covariance)))
    offsets = features[:, None] - np.stack([*means.values()])
    search = NearestNeighbors(n_neighbors=len(train) // 3, metric="cosine")
    search.fit(known.astype(np.float16))  # as they are kept
    return {
        "energy": -logsumexp(logits, axis=1),
        "neighbours": search.kneighbors(features)[0][:, -1],
        "mahalanobis": np.sqrt(np.einsum("nki,ij,nkj->nk", offsets, precision, offsets).min(1)),
    }


def ranks(scores: np.ndarray, usual: np.ndarray) -> np.ndarray:
    return (scores[:, None] - 1e-4 * abs(usual).max() > usual).sum(1)


def accuracy(folder: Path) -> float:
    paths = sorted(folder.rglob("*.jpg"))
    logits, _ = network(paths)
    return float(
        np.mean([CLASSES[k] == p.parent.name for k, p in zip(logits.argmax(1), paths, strict=True)])
    )


def answers(vit: Vit, folder: Path) -> list[bool]:
    done = vit("classify", "run", folder, "--unknown=0.5", "--json")
    assert done.status == 0, done.err
    return [row["unknown"] for row in json.loads(done.out)]


@pytest.mark.parametrize("score", SCORES)
def test_answers_are_those_of_the_score_by_numpy_and_other_values_stay(
    vit: Vit, split: Path, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured(Path("new"))  # and pictures of noise, in the folder of one class
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 255, (24, 24, 3)).astype("uint8")
        Image.fromarray(pixels).save(f"new/red/noise{i}.png")
    asked, before = sorted(Path("new").rglob("*.*")), read_sealed(STORED)
    by_energy = answers(vit, Path("new"))
    monkeypatch.setattr("vit.extensions.trust.choosing.choose", lambda *_: Choice(score, {}, 0))
    done = vit("trust", "run", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["score"] == score

    after = read_sealed(STORED)
    assert torch.equal(before[0]["scores"], after[0]["scores"])
    about, text = json.loads(before[1]), json.loads(after[1])
    assert text == {name: about[name] for name in text} | {"unknown": score}
    assert about["temperature"] != 1 and about["unknown"] == "energy"

    train, val = (sorted((split / part).rglob("*.jpg")) for part in ("train", "val"))
    usual, found = plain_scores(train, val), plain_scores(train, asked)
    stored = Trust.read(Path("run/model"))
    assert stored is not None and stored.usual is not None
    np.testing.assert_allclose(
        np.sort(stored.usual), np.sort([*usual.values()]), rtol=0.01, atol=1e-4
    )
    names = {score, "mahalanobis"}
    of_val = np.max([ranks(usual[name], usual[name]) for name in names], axis=0)
    cut = np.sort(of_val)[int(np.ceil(13 * 0.5)) - 1]
    expected = np.max([ranks(found[name], usual[name]) for name in names], axis=0) > cut
    places = {str(path): place for place, path in enumerate(asked)}
    shown = [
        places[row["image"]] for row in json.loads(vit("classify", "run", "new", "--json").out)
    ]
    assert answers(vit, Path("new")) == expected[shown].tolist() != by_energy
    predictions = package.load("run").predict("new", unknown=0.5, batch_size=7)
    assert [prediction.unknown for prediction in predictions] == expected[shown].tolist()


def test_the_score_with_the_smallest_area_is_chosen_and_shown(vit: Vit, split: Path) -> None:
    done = vit("trust", "run")
    assert done.status == 0, done.err
    stored = Trust.read(Path("run/model"))
    assert stored is not None and stored.usual is not None and stored.usual.shape == (3, 12)
    shown = json.loads(vit("trust", "run", "--json").out)
    assert shown["score"] == stored.unknown == min(shown["areas"], key=shown["areas"].get)
    assert (shown["groups"], shown["train_images"], shown["images"]) == (3, 24, 12)
    assert f"score of unknown images: {stored.unknown}, the best with 3 groups" in done.out
    assert "24 training images; of 12 other validation images" in done.out
    right = accuracy(split / "val")
    assert shown["accuracies"][99] == pytest.approx(right)
    assert f"{100:13} {100 * right:13.1f}\n" in done.out


def test_a_file_of_answers_keeps_to_one_score(vit: Vit, split: Path) -> None:
    options = ("classify", "run", split / "val", "--out")
    for out, more in (("a.csv", ("--unknown=0.5",)), ("b.csv", ())):
        assert vit(*options, out, *more).status == 0
    assert vit("trust", "run").status == 0
    refused = vit(*options, "a.csv", "--unknown=0.5")
    assert refused.status == 2 and "a.csv was begun with unknown_by energy" in refused.err
    assert vit(*options, "b.csv").status == 0


def test_openvino_compares_the_same_features(vit: Vit, split: Path) -> None:
    pytest.importorskip("openvino")
    assert vit("trust", "run").status == 0
    done = vit("classify", "run", split, "--unknown=0.5", "--json", "--engine=openvino")
    assert [row["unknown"] for row in json.loads(done.out)] == answers(vit, split)


def test_other_images_of_the_classes_are_measured(vit: Vit, split: Path) -> None:
    assert vit("trust", "run", "--json").status == 0
    own = Trust.read(Path("run/model"))
    for name in ("train", "val"):  # without a class that the run knows
        shutil.copytree(split / name / "red", Path("other", name, "red"))
        shutil.copytree(split / name / "blue", Path("other", name, "blue"))
    done = vit("trust", "run", "--data", "other", "--json")
    assert done.status == 0, done.err
    shown = json.loads(done.out)
    assert (shown["score"], shown["groups"], shown["images"]) == ("energy", 0, 8)
    assert shown["accuracies"][99] == pytest.approx(accuracy(Path("other/val")))
    other = Trust.read(Path("run/model"))
    assert own is not None and other is not None and other.usual is not None
    assert other.usual.shape == (3, 8) and (other.images, own.images) == (12, 12)


def test_without_val_half_of_train_measures_a_probe_alone(vit: Vit, photos: Path) -> None:
    weights = saved(Path("weights"), classes=None)
    options = ("--data", photos, "--pretrained", weights, "--data.batch_size=8")
    options += ("--data.loading.num_workers=0",)
    assert vit("fit", "-c", "probe", *options, "--run-dir=run").status == 0
    measured = Trust.read(Path("run/model"))
    assert measured is not None and measured.usual is not None
    done = vit("trust", "run", "--json")
    assert done.status == 0, done.err
    shown, stored = json.loads(done.out), Trust.read(Path("run/model"))
    assert shown["measured_on"] == "training images" and shown["accuracies"] is None
    told = vit("trust", "run").out
    assert (
        "to which the head was fitted: they tell no accuracy" in told and "answered, %" not in told
    )
    assert 0 <= shown["images"] - shown["train_images"] <= 1
    assert stored is not None and stored.neighbours is not None and stored.usual is not None
    assert len(stored.neighbours) == shown["train_images"]
    assert stored.usual.shape == (3, shown["images"])
    # The values of heads that were fitted without the image, in the order of the final head.
    ordered, n = measured.usual[0].sort().values, shown["images"]
    middles = [ordered[int((i + 0.5) / n * len(ordered))] for i in range(n)]
    assert stored.usual[0].sort().values.tolist() == middles

    tuned = vit("fit", "-c", "finetune", *options, "--steps=2", "--run-dir=tuned")
    assert tuned.status == 0, tuned.err
    held_out = with_val(coloured(Path("new")), Path("split"))
    for _ in range(2):  # also after a measurement on other images
        refused = vit("trust", "tuned")
        assert refused.status == 2 and "no images that were held out as val" in refused.err
        assert vit("trust", "tuned", "--data", held_out).status == 0
    assert vit("classify", "tuned", photos, "--unknown=0.5").status == 0
    refused = vit("classify", "tuned", photos, "--coverage=0.5")
    assert refused.status == 2 and "needs held-out images" in refused.err


def test_while_a_fit_writes_it_is_refused(vit: Vit, split: Path) -> None:
    before = STORED.read_bytes()
    with locked(Path("run")):
        done = vit("trust", "run")
    assert done.status == 2 and done.err.count("\n") == 1 and "--run_dir" not in done.err
    assert f"run directory run is being written to by process {os.getpid()} on " in done.err
    assert STORED.read_bytes() == before


def test_a_run_and_images_that_cannot_be_measured_are_one_line(vit: Vit, split: Path) -> None:
    before = STORED.read_bytes()

    def refused(words: str, *args: object) -> None:
        done = vit("trust", *args)
        [*_, line] = done.err.splitlines()
        assert done.status == 2 and not done.out and words in line, done

    refused("split is not a run directory", "split")
    strange = coloured(Path("strange"))
    (strange / "red").rename(strange / "shark")
    refused("strange has classes that run does not know (shark)", "run", "--data", strange)
    several = several_labels(split)
    refused("several.csv has several labels per image", "run", "--data", several)
    options = ("fit", "-c", "cifar10", "--data", several, "--steps=1", *TINY)
    assert vit(*options, "--run-dir=several").status == 0
    refused("compares the energy of its logits already", "several")
    options = ("fit", "-c", "pretrain/mae_cifar10", "--data", split, "--steps=1", *TINY)
    decoder = ("--model.decoder_width=16", "--model.decoder_heads=1")
    assert vit(*options, *decoder, "--run-dir=mae").status == 0
    refused("mae is an encoder without classes", "mae")
    summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
    Path("run/summary.json").write_text(json.dumps(summary | {"finished": False}))
    refused("run is a run without a finished model; continue it: vit fit --run_dir run", "run")
    assert STORED.read_bytes() == before
