"""Sweeps of small runs: draws, reuse, equal compute, and the statistics of their seeds."""

import csv
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.lib import sweep
from benchmarks.papers.ablations import run as ablations
from benchmarks.papers.data_size import run as data_size
from benchmarks.papers.distillation import run as distillation
from benchmarks.papers.self_training import run as self_training
from vit.extensions.compute.candidate import from_config
from vit.models.zoo import model_config
from vit.recipes import find_recipe, read_options

CLASSES = ("ant", "bee", "cat", "dog", "elk")
LEFT_OUT = {"bee", "dog"}


@pytest.fixture
def pictures(noise: Callable[..., Path]) -> Path:
    return noise(CLASSES)


def drawn(module: ModuleType, data: Path, *draw: Any) -> dict[str, set[tuple[str, str]]]:
    """Split -> images and labels of a draw."""
    file = data.parent / "runs" / "draw.csv"
    module.draw(data, *draw, file)
    found: dict[str, set[tuple[str, str]]] = {}
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            found.setdefault(row["split"], set()).add((row["path"], row["label"]))
    return found


def test_draws_lie_in_each_other_and_share_val(pictures: Path) -> None:
    small, large, other = (
        drawn(data_size, pictures, "all", *which) for which in ((10, 0), (50, 0), (50, 1))
    )
    assert small["train"] < large["train"] != other["train"]
    assert small["val"] == large["val"] == other["val"]
    assert not large["val"] & large["train"]
    assert len(large["train"]) == 5 * round(0.5 * 29) and len(small["test"]) == 20


def test_classes_left_out_are_those_of_the_few_shots(pictures: Path) -> None:
    labels = {
        sweep: {label for _, label in drawn(data_size, pictures, sweep, 100, 0)["train"]}
        for sweep in ("part", "few-shot", "all")
    }
    assert labels["few-shot"] == LEFT_OUT and labels["all"] == set(CLASSES)
    assert labels["part"] == set(CLASSES) - LEFT_OUT


def training_flops(words: list[str]) -> int:
    """Of a recipe with typed sizes, for an image of 32 pixels of six classes."""
    recipe = read_options(find_recipe(words[1]))["model"]
    typed = zip(words[2::2], words[3::2], strict=True)
    sizes = {name.rpartition(".")[2]: json.loads(value) for name, value in typed}
    fields = {**recipe["architecture"], **sizes, "image_size": 32, "num_classes": 6}
    name = recipe.get("name", "vit_b16")
    return from_config(name, model_config(name, **fields)).work.training_flops


def test_the_models_take_equal_compute() -> None:
    flops = {name: training_flops(words) for name, words in data_size.MODELS.items()}
    compared = [flops[name] for name in ("vit", "bit", "hybrid")]
    assert max(compared) < 1.01 * min(compared)
    assert flops["vit_32"] < flops["vit_48"] < flops["vit"]


def test_a_sweep_is_trained_once(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[..., Any]
) -> None:
    monkeypatch.setattr(data_size, "SHORTER", (0.5,))
    options = ("--quick", "--data", pictures, "--runs", pictures.parent / "runs")
    first = script(data_size, *options)["rows"]
    assert [(row["sweep"], row["percent"], row["steps"]) for row in first] == [
        ("part", 50, 4), ("part", 100, 4), ("part", 100, 2), ("all", 50, 4), ("all", 100, 4)
    ]  # fmt: skip
    assert [row["images"]["train"] for row in first] == [42, 87, 87, 70, 145]
    assert all(0 <= score <= 1 for score in first[0]["few_shot"].values())
    monkeypatch.setattr(data_size.trained.__globals__["Options"], "__init__", None)
    assert script(data_size, *options)["rows"] == first
    with pytest.raises(SystemExit, match="other options"):
        script(data_size, *options, "--", "--data.batch_size", "32")


def test_a_killed_process_has_used_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "EVERY", 0.01)
    folder = tmp_path / "run"

    def noted() -> float:
        return json.loads((tmp_path / "run.json").read_text())["cpu_seconds"]

    with sweep.counted(folder, []):
        until = time.process_time() + 30
        while noted() < 0.2 and time.process_time() < until:
            pass
        assert noted() >= 0.2  # all that a process leaves which is killed here
    first = noted()
    with sweep.counted(folder, []):
        assert first <= noted() < first + 5
    assert noted() >= first >= 0.2


def test_the_ablations_run(pictures: Path, script: Callable[..., Any]) -> None:
    content = script(ablations, "--quick", "--data", pictures, "--runs", pictures.parent / "runs")
    assert [row["sweep"] for row in content["rows"]] == ["head", "optimizer"]
    assert {row["model"]: row["ratio"] for row in content["speed"]}["vit_ti16"] == 1
    shapes = [arm for arm in ablations.arms() if arm[0] == "shape"]
    assert len(shapes) == 17 and len(ablations.arms()) == 17 + 15 + 6


def test_self_training_runs(pictures: Path, script: Callable[..., Any]) -> None:
    runs = pictures.parent / "runs"
    rows = script(self_training, "--quick", "--data", pictures, "--runs", runs)["rows"]
    assert [(row["arm"], row["iteration"], row["seed"]) for row in rows] == [
        ("teacher", 0, 0), ("noisy student", 1, 0), ("without noise", 1, 0),
        ("hard labels", 1, 0), ("no filter", 1, 0), ("teacher", 0, 1),
    ]  # fmt: skip
    images = {row["arm"]: row.get("images") for row in rows}
    assert images["no filter"] == 5 * 27 and images["noisy student"] % 8 == 0
    with (runs / "seed_0" / "labelled.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [sum(row["split"] == s for row in rows) for s in ("train", "val", "test")] == [10, 5, 20]
    labelled = {(runs / "seed_0" / row["path"]).resolve() for row in rows}
    others = {path.resolve() for path in (runs / "seed_0" / "unlabelled").iterdir()}
    assert not labelled & others and len(labelled | others) == 5 * 34


def test_distillation_runs_and_its_arms_take_equal_time(
    pictures: Path, script: Callable[..., Any]
) -> None:
    runs = pictures.parent / "runs"
    content = script(distillation, "--quick", "--data", pictures, "--runs", runs)
    assert [row["label"] for row in content["rows"]] == ["labels", "teacher", "cache", "filled"]
    # 480 s: 16 epochs of 30 s, 8 of 60 s, 2 of 60 s and 12 of 30 s.
    expected = {"labels": 16, "teacher": 8, "cache": 14, "filled": 16}
    assert distillation.lengths(480, 30, 60) == expected


def test_a_verdict_is_that_of_the_interval_over_the_seeds() -> None:
    # 4.3027 is Student's quantile for three seeds, of any table.
    assert sweep.half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert sweep.half_interval([1.0]) == math.inf
    assert sweep.verdict([1.0, 1.1, 1.2]) == "seen"
    assert sweep.verdict([-1.0, -1.1, -1.2]) == "not seen"
    assert sweep.verdict([-1.0, 1.0, 2.0]) == "within noise" and sweep.verdict([5.0]) == "one seed"


def test_the_exponent_of_a_power_law_is_found() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    found = sweep.power(x, [3 * v**-0.25 for v in x])
    assert found["exponent"] == pytest.approx(-0.25) and found["half_interval"] < 1e-6
    noisy = sweep.power([1.0, math.e, math.e**2], [1.0, math.e, math.e])
    # By hand: slope 1/2, residuals -1/6, 1/3, -1/6, so its variance is (1/6) / 1 / 2.
    assert noisy["exponent"] == pytest.approx(0.5)
    assert noisy["half_interval"] == pytest.approx(12.7062 * math.sqrt(1 / 12), rel=1e-4)
