"""Sweeps of small runs: draws, reuse, equal compute, and what their seeds say."""

import csv
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.lib import sweep
from benchmarks.papers.ablations import page as ablations_page
from benchmarks.papers.ablations import run as ablations
from benchmarks.papers.data_size import page
from benchmarks.papers.data_size import run as data_size
from benchmarks.papers.self_training import page as self_training_page
from benchmarks.papers.self_training import run as self_training
from vit.extensions.compute.candidate import from_config
from vit.models.zoo import model_config
from vit.recipes import find_recipe
from vit.yaml_reader import read_options

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


@pytest.mark.parametrize(("holds", "said"), [(True, "seen"), (False, "not seen")])
def test_sentences_on_self_training_are_judged_by_their_sides(holds: bool, said: str) -> None:
    rows = []
    arms = {("teacher", 0): 0.5, ("without noise", 1): 0.52, ("hard labels", 1): 0.53}
    arms |= {("no filter", 1): 0.54} | {("noisy student", i): 0.55 + 0.01 * i for i in (1, 2, 3)}
    for ((arm, iteration), accuracy), seed in itertools.product(arms.items(), range(3)):
        value = (accuracy if holds else 1 - accuracy) + 0.0001 * seed * iteration
        of_run = {"arm": arm, "iteration": iteration, "seed": seed}
        rows.append({**of_run, "accuracy": value, "corrupted": value})
    assert verdicts(self_training_page.judged({"rows": rows})) == {said}


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


def verdicts(page: str) -> set[str]:
    """The last column of a table."""
    return {line.split("|")[-2].strip() for line in page.splitlines()[2:]}


@pytest.mark.parametrize(("holds", "said"), [(True, "seen"), (False, "not seen")])
def test_sentences_on_data_are_judged_by_their_sides(holds: bool, said: str) -> None:
    # As in the paper: BiT and the small ViT lead on few images, the ViT on many.
    least, most = {"vit": 0.3, "vit_32": 0.35, "bit": 0.4}, {"vit": 0.6, "vit_32": 0.5, "bit": 0.55}
    rows = []
    for percent, accuracies in ((2, least), (30, most), (100, most)):
        for (model, accuracy), seed in itertools.product(accuracies.items(), range(3)):
            value = (accuracy if holds else 1 - accuracy) + 0.001 * seed
            row = {"sweep": "part", "model": model, "percent": percent, "share": 1.0, "seed": seed}
            gap = (1 if holds else -1) * (2.0 if model == "vit" else 1.0) + 0.01 * seed
            row |= {"accuracy": value, "few_shot": {"5": value}, "last_val_loss": gap}
            rows.append(row | {"last_train_loss": 0.0})
    content = {"rows": rows, "settings": {"percent": [2, 30, 100]}}
    assert verdicts(page.judged(page.Results(content))) == {said}


@pytest.mark.parametrize(("holds", "said"), [(True, "seen"), (False, "not seen")])
def test_sentences_on_shapes_are_judged_by_their_sides(holds: bool, said: str) -> None:
    rows = []
    # Axis -> value -> doublings of compute and of parameters, gain over the centre in points.
    axes = {
        "depth": {1: (-2, -2, -12), 2: (-1, -1, -5), 8: (1, 1, 3), 16: (2, 2, 4)},
        "width": {16: (-2, -4, -1), 32: (-1, -2, -0.5), 128: (1, 2, 0.5), 256: (2, 4, 1)},
        "MLP": {32: (-1, -1, -1), 64: (-0.5, -0.5, -0.5), 256: (1, 1, 1), 512: (2, 2, 2)},
        "patch size": {16: (-2, 0, -4), 4: (2, 0, 4)},
        "all": {2: (-2, -3, -4), 8: (2, 3, 4)},
    }
    shapes = [("centre", 0, (0, 0, 0))] + [(a, v, g) for a, e in axes.items() for v, g in e.items()]
    for (axis, value, (compute, parameters, points)), seed in itertools.product(shapes, range(3)):
        if not holds:  # parameters explain the accuracy instead
            compute, parameters = parameters or compute / 100, compute
        accuracy = 0.5 + (points if holds else -points) / 100 + 0.0001 * seed * (value % 3)
        row = {"sweep": "shape", "name": axis, "value": value, "seed": seed, "accuracy": accuracy}
        rows.append(row | {"training_flops": 2.0**compute, "parameters": 2.0**parameters})
    assert verdicts(ablations_page.judged_shapes(ablations_page.Results({"rows": rows}))) == {said}
