"""Labels in doubt as cleanlab finds them, and held-out scores by scikit-learn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

from vit.extensions.datacheck import doubt
from vit.extensions.datacheck.check import Pictures
from vit.extensions.datacheck.doubt import confident_errors, doubts, held_out_scores
from vit.logistic import held_out_logits

Cloud = tuple[np.ndarray, np.ndarray, np.ndarray]


def cloud(count: int, classes: int, wrong: int, seed: int = 0) -> Cloud:
    """Points around class centres, their labels of which the first `wrong` are others, and the
    true ones."""
    random = np.random.default_rng(seed)
    true = random.integers(0, classes, count)
    points = 6 * np.eye(classes, 6)[true] + random.normal(size=(count, 6))
    labels = true.copy()
    labels[:wrong] = (true[:wrong] + random.integers(1, classes, wrong)) % classes
    return points.astype(np.float32), labels, true


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("classes", [2, 3, 12])
def test_doubts_are_cleanlabs(classes: int, sharpness: float) -> None:
    cleanlab = pytest.importorskip("cleanlab.filter", reason="pip install 'vitkit[clean]'")
    random = np.random.default_rng(classes)
    labels = random.integers(0, classes, 400)
    scores = random.normal(size=(400, classes)) + 1.5 * np.eye(classes)[labels]
    probabilities = torch.from_numpy(sharpness * scores).softmax(1).numpy()
    options = {"filter_by": "low_self_confidence", "n_jobs": 1}
    expected = cleanlab.find_label_issues(
        labels, probabilities, return_indices_ranked_by="self_confidence", **options
    )
    other = probabilities[expected].argmax(1) != labels[expected]
    assert other.sum() > 5
    assert confident_errors(probabilities, labels).tolist() == expected[other].tolist()


def test_doubts_follow_the_papers_thresholds() -> None:
    probabilities = np.array(
        [[0.9, 0.1, 0.0], [0.7, 0.3, 0.0], [0.3, 0.7, 0.0], [0.1, 0.9, 0.0], [0.45, 0.55, 0.0]]
    )
    # Thresholds: (0.9 + 0.7 + 0.1 + 0.45) / 4 and 0.7; then (0.9 + 0.7 + 0.45) / 3 and 0.8.
    assert confident_errors(probabilities, np.array([0, 0, 1, 0, 0])).tolist() == [3]
    assert confident_errors(probabilities, np.array([0, 0, 1, 1, 0])).tolist() == []


def test_held_out_scores_are_those_of_fits_to_the_other_folds() -> None:
    points, labels, _ = cloud(60, 3, 0)
    z = torch.from_numpy(points).double()
    places = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    found = held_out_logits(z, torch.from_numpy(labels), 3, 0.05, folds=5, most=40)
    for fold in range(5):
        rest = np.setdiff1d(np.arange(60), places[fold::5])
        rest = np.array([at for at in places.tolist() if at in rest])[:40]
        # Mean loss + 0.05 |w|^2 = (sum of losses + 40 * 0.05 |w|^2) / 40, and C |w|^2 has a half.
        model = LogisticRegression(C=1 / (2 * 40 * 0.05), tol=1e-12, max_iter=5000)
        expected = model.fit(points[rest], labels[rest]).predict_proba(points[places[fold::5]])
        probabilities = found[places[fold::5]].softmax(1).numpy()
        np.testing.assert_allclose(probabilities, expected, atol=1e-3)


def manifest(folder: Path, labels: list[str]) -> Pictures:
    """Distinct pictures with these labels, read."""
    lines = ["path,label"]
    for number, label in enumerate(labels):
        noise = np.random.default_rng(number).integers(0, 255, (6, 6), dtype=np.uint8)
        Image.fromarray(noise).resize((90, 90)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{label}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    pictures = Pictures(str(folder / "list.csv"))
    pictures.read(0)
    return pictures


def test_wrong_labels_are_found_by_their_features(tmp_path: Path) -> None:
    points, labels, true = cloud(90, 3, 6)
    pictures = manifest(tmp_path, [f"class {label}" for label in labels])
    found = list(doubts(pictures, points, np.arange(90)))
    assert {each.image for each in found[:5]} < set(range(6)) and len(found) < 8
    assert [each.suggested for each in found[:5]] == [f"class {true[f.image]}" for f in found[:5]]
    assert all(0.5 < (each.certainty or 0) <= 1 for each in found[:5])


def test_of_several_labels_each_is_doubted_by_itself(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    true = random.random((120, 3)) < 0.5
    points = (4 * true + random.normal(size=(120, 3)) / 2).astype(np.float32)
    given = true.copy()
    points[:2] = 6 * true[:2] - 1
    given[0, 1], given[1, 2] = not true[0, 1], not true[1, 2]
    names = np.array(["x", "y", "z"])
    pictures = manifest(tmp_path, ["|".join(names[row]) for row in given])
    found = {each.image: each.suggested for each in doubts(pictures, points, np.arange(120))}
    assert {image: found[image] for image in (0, 1)} == {
        image: "|".join(names[true[image]]) for image in (0, 1)
    }
    assert len(found) < 6


def test_few_images_are_said_to_be_unchecked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = manifest(tmp_path, ["a"] * 4 + ["b"] * 4)
    assert list(doubts(pictures, np.eye(8), np.arange(8))) == []
    assert "labels are not checked: no class has 5 images" in capsys.readouterr().err


def test_few_groups_are_said_to_be_unchecked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = manifest(tmp_path, ["a", "b"] * 10)
    places, classes = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    for count in (4, 5):
        pictures.groups = [str(at % count) for at in range(20)]  # pyright: ignore
        list(doubts(pictures, places + 9 * classes[:, None], np.arange(20)))
        said = "labels are not checked: there are fewer than 5 groups" in capsys.readouterr().err
        assert said == (count < 5)


def test_a_probe_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubt, "SAMPLE", 40)
    monkeypatch.setattr(doubt, "FITTED", 40)
    points, labels, true = cloud(200, 3, 10)
    guessed = held_out_scores(points, labels, 3).argmax(1).numpy()
    assert (guessed == true).mean() > 0.9
