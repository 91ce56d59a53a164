"""The speed benchmarks at the smallest size: what they compare, count and write."""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from vit.models.config import ViTConfig
from vit.models.zoo import build_model

pytest.importorskip("timm")
pytest.importorskip("transformers")

TINY = ViTConfig(
    image_size=16,
    patch_size=8,
    num_classes=5,
    width=16,
    depth=2,
    mlp_dim=32,
    num_heads=2,
    activation="gelu",
)


@pytest.fixture
def run(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[dict[str, Any], Path]]:
    """Runs a script's `main`; returns the JSON of its last line, and its folder."""
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    threads = torch.get_num_threads()

    def called(module: ModuleType, capsys: Any, *arguments: str) -> tuple[dict[str, Any], Path]:
        monkeypatch.setattr(module, "ROOT", tmp_path, raising=False)
        monkeypatch.setattr("collect.RESULTS", tmp_path / "benchmarks" / "results")
        monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *arguments])
        try:
            module.main()
        finally:
            torch.set_num_threads(threads)
        return json.loads(capsys.readouterr().out.splitlines()[-1]), tmp_path

    return called


def test_the_four_libraries_build_one_architecture(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    peers = load_benchmark("model_peers")
    sizes = {}
    for setting in peers.settings(TINY, "cpu", "inference"):
        model = peers.BUILDERS[setting.library](TINY, setting)
        sizes[str(setting)] = sum(p.numel() for p in model.parameters())
    # Peers: defaults 3, explicit float32 2, bfloat16 3 and explicit 2. Ours: 1 per precision.
    assert len(sizes) == 12
    assert set(sizes.values()) == {sum(p.numel() for p in build_model(TINY).parameters())}


def test_explicit_attention_is_another_kernel_of_the_same_model(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    peers = load_benchmark("model_peers")
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for library in ("timm", "transformers"):
        kernels, logits = [], []
        for explicit in (False, True):
            setting = peers.Setting(library, "", explicit_attention=explicit)
            model = peers.fill(peers.BUILDERS[library](TINY, setting)).eval()
            with torch.no_grad(), torch.profiler.profile() as seen:
                logits.append(model(images))
            kernels.append({event.key for event in seen.key_averages()})
        assert ["aten::scaled_dot_product_attention" in k for k in kernels] == [True, False]
        torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)


def test_models_are_held_against_timm_and_the_limit(
    load_benchmark: Callable[[str], ModuleType],
    run: Callable[..., tuple[dict[str, Any], Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    load_benchmark("model_peers")
    models = load_benchmark("models")
    monkeypatch.setattr(models, "configuration", lambda name: TINY)
    arguments = ["--models", "tiny", "--batch-size", "2", "--rounds", "2", "--no-processes"]
    arguments += ["--precisions", "fp32", "bf16"]
    file = tmp_path / "some.json"
    found, folder = run(models, capsys, *arguments, "--results", str(file))
    assert json.loads(file.read_text()) == found
    # Results of some models do not replace those of all.
    assert not [*(folder / "benchmarks/results").iterdir()]
    assert {"hardware", "versions", "commit", "clock", "threads"} <= set(found)
    assert {"timm", "transformers", "torchvision", "torch"} <= set(found["versions"])
    rows = {(r["what"], r["setting"]): r for r in found["rows"]}
    # In training the peers have fused AdamW, too.
    assert len(rows) == len(found["rows"]) == 12 + 15
    for (what, setting), row in rows.items():
        assert row["images_per_second"] > 0 and 0 < row["utilisation"] < 1
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        if setting == models.BASE:
            assert row["ratio"] == row["ratio_min"] == row["ratio_max"] == 1
        has_error = what == "inference" and setting.startswith(("timm", "vit"))
        assert (row["logit_error"] is not None) == has_error
        if has_error:
            assert 0 < row["logit_error"] < (0.05 if "bf16" in setting else 1e-5)


def row(setting: str, *ratios: float) -> dict:
    """A row of a results file."""
    facts = {"model": "m", "what": "training", "precision": "fp32", "batch_size": 2, "rounds": 3}
    facts |= {"utilisation": 0.5, "logit_error": None}
    return facts | {"setting": setting, "ratios": ratios, "ratio": sorted(ratios)[1]}


def test_ours_is_compared_with_the_best_peer(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    module = load_benchmark("model_verdicts")
    rows = [
        row("timm, default", 1, 1, 1),
        row("timm, fp32", 2, 1, 4),
        row("torchvision, default", 1.5, 1.5, 1.5),
        row("vit, fp32", 3, 3, 2),
    ]
    [found] = module.verdicts(rows)
    assert (found["ours"], found["peer"]) == ("vit, fp32", "timm, fp32")
    assert found["peers"] == ["timm, fp32", "torchvision, default"]
    assert found["ratio"] == (1.5, 0.5, 3)  # per round, not of the medians
    rows[-1] = row("vit, fp32", 6, 6, 6)
    [faster] = module.verdicts(rows)
    assert faster["ratio"] == (3, 1.5, 6)
    assert module.mean_ratio([found, faster], "fp32") == pytest.approx((1.5 * 3) ** 0.5)


def test_a_final_of_the_same_settings_takes_the_place_of_the_first_ratio(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    module = load_benchmark("model_verdicts")
    rows = [row("timm, default", 1, 1, 1), row("timm, fp32", 2, 1, 4), row("vit, fp32", 3, 3, 2)]
    ratios = [1.3, 1.0, 1.1, 1.2, 0.9, 1.4, 1.5]
    key = {"model": "m", "what": "training", "precision": "fp32"}
    final = {**key, "ours": "vit, fp32", "ratios": {"timm, fp32": ratios}}
    [found] = module.verdicts(rows, [final])
    assert found["ratio"] == (1.2, 0.9, 1.5) and found["rounds"] == 7
    final["ratios"]["timm, default"] = [1.1] * 7
    [found] = module.verdicts(rows, [final])
    assert found["ratio"] == (1.1, 1.1, 1.1) and found["peer"] == "timm, default"
    [found] = module.verdicts(rows, [{**final, "ours": "vit, bf16"}])
    assert found["ratio"] == (1.5, 0.5, 3)  # of another run, whose best setting was another


# Ranks of the interval of at least 95 %: table of the sign test.
@pytest.mark.parametrize(("n", "low", "high"), [(5, 1, 5), (6, 1, 6), (10, 2, 9), (25, 8, 18)])
def test_the_interval_of_a_median_has_the_ranks_of_the_sign_test(
    n: int, low: int, high: int, load_benchmark: Callable[[str], ModuleType]
) -> None:
    values = [float(i) for i in range(n, 0, -1)]
    assert load_benchmark("model_verdicts").median_interval(values) == (low, high)


def test_the_second_table_is_from_separate_processes(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_benchmark("model_peers")
    models = load_benchmark("models")
    job = models.Job("tiny", TINY, "training", 2, torch.device("cpu"), 2)
    commands: list[list[str]] = []

    def process(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        seconds = 1.0 if "timm" in str(command) else 0.5
        figures = {"cpu_seconds": seconds, "page_faults": 3, "peak_bytes": 5, "bytes_before": 1}
        return SimpleNamespace(stdout="noise\n" + json.dumps(figures))

    monkeypatch.setattr(models.subprocess, "run", process)
    rows = models.alone(job)
    assert len(commands) == 3 * len(rows)
    assert {r["setting"]: r["ratio"] for r in rows if "keeping" in r["setting"]} == {
        "vit, fp32, keeping freed memory": 2.0,
        "vit, bf16, keeping freed memory": 2.0,
    }
    assert {r["images_per_cpu_second"] for r in rows if "timm" in r["setting"]} == {2.0}
    monkeypatch.undo()
    assert models.one_process(job, "vit, fp32", steps=2)["cpu_seconds"] > 0


def test_profiles_name_what_differs(
    load_benchmark: Callable[[str], ModuleType],
    run: Callable[..., tuple[dict[str, Any], Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    load_benchmark("model_peers")
    profiles = load_benchmark("profiles")
    monkeypatch.setattr(profiles, "configuration", lambda name: TINY)
    found, _ = run(profiles, capsys, "--rounds", "2")
    assert [r["model"] for r in found["rows"]] == ["vit_b16", "vit_ti16", "cifar"]
    for row in found["rows"]:
        before, after = row["parts"]["before"], row["parts"]["after"]
        assert before["matrix products"] > 0 and after["matrix products"] > 0
        assert before["attention"] > 0 and after["attention"] > 0
        assert after["optimizer"] > 0
        # Unclassified operations are a small part.
        assert before["the rest"] < 0.8 * sum(before.values())


def test_every_axis_is_measured_and_drawn(
    load_benchmark: Callable[[str], ModuleType],
    run: Callable[..., tuple[dict[str, Any], Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    scaling = load_benchmark("scaling")
    sizes = {"image_size": 32, "patch_size": 16, "width": 64, "depth": 1, "batch": 1}
    axes = {"image_size": (32, 64), "batch": (1, 2), "depth": (1, 2), "width": (64, 128)}
    monkeypatch.setattr(scaling, "BASE", sizes)
    monkeypatch.setattr(scaling, "AXES", axes)
    alone = {"axis": "ranks", "way": "training bf16", "value": 1, "x": 1, "efficiency": 1.0}
    alone |= {"images_per_second": 5.0, "spread": 0.0, "best_efficiency": 1.0, "rounds": 2}
    monkeypatch.setattr(scaling, "measure_ranks", lambda *_: [alone])
    found, folder = run(scaling, capsys, "--rounds", "2")
    assert json.loads((folder / "benchmarks/results/scaling_cpu.json").read_text()) == found
    assert (folder / "docs/scaling.png").read_bytes().startswith(b"\x89PNG")
    rows = [r for r in found["rows"] if r["axis"] != "ranks"]
    assert len(rows) == 4 * 2 * 3
    assert [r["x"] for r in rows if r["axis"] == "image_size"][:2] == [5, 17]  # tokens
    exponents = {r["axis"]: r["exponent_of_operations"] for r in rows}
    assert exponents["batch"] == pytest.approx(0)
    assert 0.5 < exponents["depth"] < 1 and 1 < exponents["width"] < 2


def test_exponents_are_slopes_of_time_over_size(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    scaling = load_benchmark("scaling")
    quadratic = {p: scaling.Times((3.0 * p**2, 6.0 * p**2)) for p in (2, 4, 8)}
    ones = dict.fromkeys(quadratic, 1)
    assert scaling.exponents("width", quadratic, ones) == pytest.approx([2.0, 2.0])
    assert scaling.exponents("width", quadratic, {p: p for p in ones}) == pytest.approx([1, 1])


def test_startup_is_compared_with_importing_torch(
    load_benchmark: Callable[[str], ModuleType],
    run: Callable[..., tuple[dict[str, Any], Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    startup = load_benchmark("startup")
    short = [sys.executable, "-c", "pass"]
    commands = {"import torch": short, "busy": [sys.executable, "-c", "sum(range(10**7))"]}
    monkeypatch.setattr(startup, "prepare", lambda folder: None)
    monkeypatch.setattr(startup, "cases", lambda folder: commands)
    found, folder = run(startup, capsys, "--runs", "3")
    [written] = (folder / "benchmarks/results").glob("startup_cpu_*.json")
    assert json.loads(written.read_text()) == found
    rows = {row["command"]: row for row in found["rows"]}
    assert rows["import torch"]["above_import_torch"] == 0
    assert rows["busy"]["above_import_torch"] > 0
    assert rows["busy"]["min"] <= rows["busy"]["cpu_seconds"] <= rows["busy"]["max"]


def test_the_commands_that_are_timed_answer(
    load_benchmark: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    startup = load_benchmark("startup")
    startup.prepare(tmp_path)
    commands = startup.cases(tmp_path)
    for name in ("vit --help", "vit classify, one photo, ViT-Ti/16", "the same with timm"):
        seconds, passed = startup.measure(commands[name])
        assert 0 < seconds and 0 < passed
    assert statistics.median(startup.measure(commands["vit --help"])[0] for _ in range(3)) < (
        startup.measure(commands["import torch"])[0] / 3
    )
