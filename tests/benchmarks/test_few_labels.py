"""The benchmarks of few labels: subsets, draws, and gains paired by image."""

import csv
import statistics
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.papers.few_images import run as few
from benchmarks.papers.masked_patches import run as benchmark


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Empty files: 40 and 60 to train on, 5 of each class to test."""
    root = tmp_path / "data"
    for split, counts in {"train": (40, 60), "test": (5, 5)}.items():
        for name, count in zip(("cat", "dog"), counts, strict=True):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                (root / split / name / f"{i}.jpg").touch()
    return root


def images(manifest: Path, split: str) -> list[tuple[str, str]]:
    with manifest.open() as file:
        return [(r["path"], r["label"]) for r in csv.DictReader(file) if r["split"] == split]


def test_subsets_are_shares_of_each_class_and_lie_in_each_other(data: Path, tmp_path: Path) -> None:
    small, large = tmp_path / "runs" / "5.csv", tmp_path / "runs" / "20.csv"
    assert benchmark.write_subset(data, 5, small) == 5
    assert benchmark.write_subset(data, 20, large) == 20
    assert Counter(label for _, label in images(large, "train")) == {"cat": 8, "dog": 12}
    assert set(images(small, "train")) < set(images(large, "train"))
    assert len(images(small, "test")) == 10


def test_draws_are_equal_shares_of_what_tuned_no_rule(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few, "DRAWN_FROM", 20)
    files = [tmp_path / f"{seed}.csv" for seed in (0, 0, 1)]
    for seed, file in zip((0, 0, 1), files, strict=True):
        few.draw(data, 4, seed, file)
    first, again, other = (images(file, "train") for file in files)
    assert first == again != other
    assert Counter(label for _, label in first) == {"cat": 4, "dog": 4}
    allowed = sorted(path.name for path in (data / "train" / "dog").iterdir())[:20]
    assert {Path(path).name for path, label in first if label == "dog"} < set(allowed)


def test_a_gain_is_paired_by_image_and_averaged_over_seeds_first() -> None:
    ours = [{"a": True, "b": True, "c": False}, {"a": True, "b": False, "c": False}]
    theirs = [{"a": False, "b": True, "c": False}, {"a": False, "b": False, "c": True}]
    gains = (1.0, 0.0, -0.5)
    gain = few.paired(ours, theirs)
    assert gain["points"] == pytest.approx(100 * statistics.mean(gains))
    half = 196 * statistics.stdev(gains) / 3**0.5
    assert gain["half_interval"] == pytest.approx(half)
