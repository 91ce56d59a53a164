"""`vit compare`: rows, options, recipes, runs, figures, and one line for each mistake."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from tests.command import Vit
from tests.extensions.compute.conftest import shallow_candidate
from vit import console
from vit.extensions.adaptation.lora import add_lora
from vit.extensions.compute.comparison import training_rows
from vit.extensions.compute.table6 import AVERAGE, TABLE6
from vit.extensions.compute.trainings import CostOptions
from vit.models.config import ViTConfig
from vit.models.zoo import build_model, model_config
from vit.recipes import find_recipe, read_options
from vit.weights.native import save_native

TINY = ViTConfig(
    image_size=16, patch_size=8, width=16, depth=1, mlp_dim=32, num_heads=1, num_classes=3
)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the meter would write lines."""
    monkeypatch.setattr(console, "PATIENCE", inf)


def rows(vit: Vit, *args: object) -> list[dict[str, Any]]:
    done = vit("compare", *args, "--json")
    assert (done.status, done.err) == (0, "")
    return json.loads(done.out)


def a_run(folder: Path, *, accuracy: float | None = 0.875, **recipe: Any) -> Path:
    """What `vit fit` leaves behind of a tiny model that saw a thousand images."""
    metrics = {"test/loss": 1.0} if accuracy is None else {"test/acc1": accuracy, "val/acc1": 0.5}
    summary = {"model": TINY.to_dict(), "images_seen": 1000, "metrics": metrics}
    (folder / "model").mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    description = {"model": TINY.to_dict(), "extra": {"recipe": recipe}}
    (folder / "model" / "config.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(scope="module")
def three_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT-Ti/16 without positions."""
    folder = tmp_path_factory.mktemp("layers")
    model = build_model(model_config("vit_ti16", depth=3, pos_embed="none"))
    save_native(folder, model, classes=None, preprocess=None, extra={})
    return folder


def test_each_size_of_a_model_is_a_row_of_an_aligned_table(vit: Vit, three_layers: Path) -> None:
    args = (three_layers, "--image-size", "224", "192x256")
    found = rows(vit, *args)
    assert [row["image_size"] for row in found] == [[224, 224], [192, 256]]
    assert found[0]["flops"] == 2 * found[0]["macs"]
    assert found[0]["activation_bytes"] > found[0]["activation_bytes_checkpointing"]
    assert "largest_batch" not in found[0]
    names, units, first, second, *_ = vit("compare", *args).out.splitlines()
    assert units.split() == ["px", "M", "G/image"] + ["GFLOP/image"] * 2 + ["MiB/image"] * 2
    assert len(names) == len(first) == len(second) <= 92 + len(str(three_layers))


def test_precision_classes_and_memory_change_the_row(vit: Vit, three_layers: Path) -> None:
    [base] = rows(vit, three_layers, "--memory", "24")
    [full] = rows(vit, three_layers, "--memory", "24", "--precision", "fp32")
    [more] = rows(vit, three_layers, "--memory", "48", "--classes", "10")
    assert full["activation_bytes"] > 1.4 * base["activation_bytes"]
    assert more["params"] == base["params"] - 990 * 193
    assert more["largest_batch"] >= 2 * base["largest_batch"]
    assert base["largest_batch_checkpointing"] > base["largest_batch"]


def test_several_devices_are_rows_with_the_memory_of_one(vit: Vit, three_layers: Path) -> None:
    args = (three_layers, "--devices", "2", "64", "--memory", "8")
    found = rows(vit, *args, "--ema")
    ways = [(row["devices"], row["strategy"]) for row in found]
    assert ways == [(2, "ddp"), (2, "fsdp2"), (64, "ddp"), (64, "fsdp2")]
    whole, half, same, small = (row["bytes"] for row in found)
    assert whole == same and whole["gradients"] == whole["ema"] == 4 * found[0]["params"]
    assert list(small) == ["weights", "gradients", "optimizer", "ema", "exchange"]
    assert small["ema"] < half["ema"] / 16 < whole["ema"] / 31
    assert found[0]["largest_batch"] <= found[1]["largest_batch"] <= found[3]["largest_batch"]
    [plain] = rows(vit, *args, "--strategy", "fsdp2", "--precision", "fp32")[1:]
    assert "ema" not in plain["bytes"] and plain["bytes"]["weights"] == small["weights"]
    names, units, *lines = vit("compare", *args).out.splitlines()
    assert names.split()[:5] == ["model", "image", "devices", "weights", "gradients"]
    assert units.split() == ["px", *["GiB"] * 4, *["MiB/image"] * 2, *["images"] * 2]
    assert "fsdp2" in lines[3].split() and "exchange: buckets" in " ".join(lines[4:])


def test_all_rows_of_table_6_come_in_order(vit: Vit, monkeypatch: pytest.MonkeyPatch) -> None:
    find = "vit.extensions.compute.trainings.find_model"
    model = shallow_candidate("vit_ti16")
    monkeypatch.setattr(find, lambda name, *_: replace(model, name=name))
    found = rows(vit, "--recipe", "jft")
    assert [(row["model"], row["epochs"]) for row in found] == [(p.model, p.epochs) for p in TABLE6]
    for row, point in zip(found, TABLE6, strict=True):
        assert row["exaflops"] == pytest.approx(row["training_flops"] * row["images"] / 1e18)
        assert row["ratio"] == pytest.approx(row["exaflops"] / point.exaflops)
        assert row["images"] == point.epochs * 303e6


def test_other_models_images_and_classes_can_be_put_in(vit: Vit) -> None:
    [small] = rows(vit, "--recipe", "jft", "vit_s16", "--epochs", "2", "--images", "1e6")
    assert (small["epochs"], small["images"]) == (2, 2e6) and "ratio" not in small
    [plain], [wide] = (
        rows(vit, "--recipe", "jft", "vit_b32", *extra) for extra in ([], ["--classes", "18291"])
    )
    assert wide["exaflops"] - plain["exaflops"] == pytest.approx(7 * 303e6 * 6e-18 * 768 * 17291)


def test_a_recipe_gives_size_model_and_images(vit: Vit) -> None:
    [row] = rows(vit, "--recipe", "cifar10")
    assert row["model"] == "hybrid 128x4 /4" and row["image_size"] == [32, 32]
    assert row["classes"] == 10
    assert row["images"] == 20 * (45_000 // 128) * 128  # epochs of full batches
    [other] = rows(vit, "--recipe", "cifar10", "vit_ti16", "--epochs", "3", "--images", "1280")
    assert (other["model"], other["images"]) == ("vit_ti16", 3 * 1280)


def test_a_recipe_of_steps_counts_its_processes(vit: Vit, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "data: {dataset: cifar10, batch_size: 100, image_size: [32, 64]}\n"
        "model: {name: vit_ti16, architecture: {depth: 1}, learning: {freeze_backbone: true}}\n"
        "trainer: {max_steps: 50, max_epochs: 9, accumulate_grad_batches: 2}\n"
    )
    [row] = rows(vit, "--recipe", recipe)
    assert (row["images"], row["epochs"], row["image_size"]) == (10_000, None, [32, 64])
    assert row["exaflops"] == pytest.approx(1e4 * (row["flops"] + 2 * 192 * 10) / 1e18)
    assert rows(vit, "--recipe", recipe, "--processes", "8")[0]["images"] == 80_000
    [longer] = rows(vit, "--recipe", recipe, "--epochs", "2")
    assert (longer["images"], longer["epochs"]) == (90_000, 2)


def test_a_head_in_closed_form_costs_one_pass(vit: Vit, tmp_path: Path) -> None:
    [row] = rows(vit, "vit_ti16", "--recipe", "probe", "--images", "5000")
    assert row["images"] == 5000
    assert row["exaflops"] == pytest.approx(5e3 * (row["flops"] + 2 * 192 * 1000) / 1e18)
    run = a_run(tmp_path / "probe")
    summary = json.loads((run / "summary.json").read_text())
    changes = {"images_seen": 0, "images": {"train": 300}}
    (run / "summary.json").write_text(json.dumps(summary | changes))
    [row] = rows(vit, "--runs", run)
    assert row["images"] == 300 and 1 <= row["exaflops"] / (row["flops"] * 300e-18) < 1.1


def test_weights_are_counted_at_their_own_size(vit: Vit) -> None:
    recipe = ("--recipe", "finetune", "--images", "1000")
    [row] = rows(vit, "vit_ti16.augreg_in21k_ft_in1k_384", *recipe)
    assert row["image_size"] == [384, 384]
    assert rows(vit, "vit_ti16", *recipe)[0]["image_size"] == [224, 224]


def test_days_and_price_follow_from_the_device(vit: Vit) -> None:
    args = ("--recipe", "jft", "vit_b32", "--device", "H100", "--utilisation", "0.5")
    [row] = rows(vit, *args, "--price-per-hour", "2.5")
    days = row["exaflops"] * 1e18 / (0.5 * 989.4e12) / 86_400
    assert row["device_days"] == pytest.approx(days)
    assert row["cost"] == pytest.approx(days * 24 * 2.5)
    [assumed] = rows(vit, *args[:-2])
    assert assumed["device_days"] == pytest.approx(days * 0.5 / 0.4) and "cost" not in assumed


def test_a_run_is_counted_by_the_images_it_saw(vit: Vit, tmp_path: Path) -> None:
    run = a_run(tmp_path / "mine", data={"dataset": "cifar10"}, model={"pretrained": "x"})
    [row] = rows(vit, "--runs", run)
    assert (row["run"], row["images"], row["image_size"]) == ("mine", 1000, [16, 16])
    assert (row["accuracy"], row["split"], row["dataset"]) == (87.5, "test", "cifar10")
    assert row["exaflops"] == pytest.approx(row["training_flops"] * 1e-15)
    assert "pretrained weights, whose compute is not included" in vit("compare", "--runs", run).out
    frozen = a_run(tmp_path / "probe", model={"learning": {"freeze_backbone": True}})
    assert rows(vit, "--runs", frozen)[0]["exaflops"] < 0.5 * row["exaflops"]
    lora = {"class_path": "vit.LoRA", "init_args": {"rank": 2}}
    adapted = a_run(tmp_path / "lora", model={"adaptation": lora})
    [of_lora] = rows(vit, "--runs", adapted)
    network, counted = build_model(TINY), []
    for rank in (0, 2):
        if rank:
            add_lora(network, rank)
        with FlopCounterMode(display=False) as counter:  # attention on a CPU is left out of both
            network(torch.zeros(1, 3, 16, 16)).sum().backward()
        counted.append(counter.get_total_flops())
    assert row["training_flops"] - of_lora["training_flops"] == counted[0] - counted[1] > 0
    taught = a_run(tmp_path / "taught", model={"loss": {"teacher": {"class_path": "x"}}})
    assert "passes of a teacher" in vit("compare", "--runs", taught).out


def test_a_run_without_labels_is_counted_by_its_task(vit: Vit, tmp_path: Path) -> None:
    """As its recipe is: three quarters of the patches are masked."""
    [by_recipe] = rows(vit, "--recipe", "pretrain/mae_cifar10", "--images", "1280", "--epochs", "1")
    content = read_options(find_recipe("pretrain/mae_cifar10"))
    fields = content["model"]["architecture"]
    config = model_config(content["model"].get("name") or "vit_ti16", image_size=32, **fields)
    run = a_run(tmp_path / "mae", accuracy=None, **content)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"model": config.to_dict()}))
    [of_run] = rows(vit, "--runs", run)
    assert of_run["training_flops"] == by_recipe["training_flops"]


def test_accuracy_is_drawn_against_compute(vit: Vit, tmp_path: Path) -> None:
    run = a_run(tmp_path / "mine", data={"dataset": "cifar10"})
    figure = ("--figure", tmp_path / "x.png")
    done = vit("compare", "--recipe", "jft", "vit_b32", "--runs", run, *figure, "--json")
    assert len(json.loads(done.out)) == 2
    assert Image.open(tmp_path / "x.png").size == (1152, 736)
    unscored = a_run(tmp_path / "other", accuracy=None)
    done = vit("compare", "--runs", unscored, *figure)
    assert done.status == 2 and "none of the runs has a top-1 accuracy" in done.err


def test_the_papers_points_are_on_the_runs_own_dataset(tmp_path: Path) -> None:
    from vit.extensions.compute.table6 import TITLES, column_of
    from vit.extensions.reports.scaling import compute_figure

    run = str(a_run(tmp_path / "mine", data={"dataset": "cifar10"}))
    found, _ = training_rows(CostOptions(runs=[run]))
    for accuracy, label in ((None, "CIFAR-10"), ("pets", "Oxford-IIIT Pets"), ("average", "mean")):
        column = accuracy or column_of(row["dataset"] for row in found)
        axes = compute_figure(found, TABLE6, column, TITLES[column]).axes[0]
        assert axes.get_ylabel().startswith(label)
    values = [y for line in axes.lines for y in line.get_ydata()]
    assert 87.5 in values and len(values) == 19
    assert TABLE6[0].score(AVERAGE) in values


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", "nothing to compare: name a model"),
        ("vit_b16 --image-size 225", "vit_b16: image_size=225x225 is not a multiple of patch_size"),
        ("--recipe transfer/vit", "leaves the model to you"),
        ("--recipe jft vit_s16", "vit_s16 is not in Table 6 of the paper: say how long"),
        ("--recipe jft --image-size 384", "are trained at 224 pixels"),
        ("--recipe cifar10 --image-size 32 64", "a recipe has one, not 2"),
        ("--recipe cifar10 --utilisation 1.5", "1.5 is not a share in (0, 1]"),
        ("--recipe cifar10 --utilisation 0.5", "--utilisation needs --device"),
        ("--recipe cifar10 --memory 8", "--memory needs models, not a --recipe or --runs"),
        (
            "vit_ti16 --recipe transfer/vit --images 5",
            "--images: recipe 'transfer/vit' takes 10,000",
        ),
        ("vit_ti16 --device tpu-v3-core", "--device needs a --recipe or --runs: its memory is not"),
        ("--recipe jft --processes 8", "--processes needs a --recipe of `vit fit`"),
        ("--runs nowhere", "nowhere is not the directory of a finished run"),
        ("vit_b16 --runs nowhere", "--runs beside models needs a --recipe"),
        ("vit_b16 --figure x.png", "--figure needs --recipe jft or --runs"),
        ("vit_b16 --accuracy pets", "--accuracy needs --figure"),
        ("vit_b16 --strategy fsdp2", "--strategy needs --devices"),
    ],
)
def test_a_mistake_is_one_line(vit: Vit, args: str, message: str) -> None:
    done = vit("compare", *args.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("vit: ") and done.err.count("\n") == 1
    assert message in done.err


def test_a_broken_recipe_is_one_line(vit: Vit, tmp_path: Path) -> None:
    for text, message in (
        ("trainer: [", "r.yaml, line 1: not valid YAML"),
        ("just words", "has no options"),
        ("data: other.yaml\nmodel: {}", "data=other.yaml is not a mapping"),
        ("model: {name: vit_ti16}\ntrainer: {max_epochs: 3}", "add --images N"),
        ("model: {name: vit_ti16}\ntrainer: {max_time: 00:01:00:00}", "add --epochs N"),
    ):
        (tmp_path / "r.yaml").write_text(text)
        done = vit("compare", "--recipe", tmp_path / "r.yaml")
        assert done.status == 2 and done.err.count("\n") == 1 and message in done.err
