"""The pages in docs: their Python runs as printed, with a small model, and its results match."""

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vit
from vit.cli.main import main
from vit.data.transforms import TrainTransform
from vit.extensions.formats.convert import convert
from vit.extensions.formats.publish import push_to_hub
from vit.preprocessing import Preprocess
from vit.tables import rows
from vit.training.losses import Loss
from vit.weights.native import save_native
from vit.weights.report import LoadReport

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
README = (ROOT / "README.md").read_text()
COLORS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def blocks(page: str) -> list[str]:
    """The Python on a page, for a smaller model than the one it names."""
    return [
        code.replace("vit_b16", "vit_ti16")
        for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    ]


def run(*codes: str) -> dict[str, Any]:
    """Runs blocks in sequence; returns their global names."""
    names: dict[str, Any] = {"__name__": "page"}
    for code in codes:
        exec(compile(code, "docs", "exec"), names)
    return names


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: the files that the pages name."""
    torch.manual_seed(0)
    model = vit.create_model("vit_ti16")
    torch.nn.init.normal_(model.head.weight)
    preprocess = Preprocess(image_size=(224, 224), crop_fraction=1.0).to_dict()
    save_native(tmp_path / "native", model, classes=None, preprocess=preprocess, extra={})
    convert(tmp_path / "native", tmp_path / "B_16.npz", "google")
    (tmp_path / "native").rename(tmp_path / "model")
    rng = np.random.default_rng(0)
    for name, color in COLORS.items():
        folder = tmp_path / "my_photos" / name
        folder.mkdir(parents=True)
        for i in range(10):
            pixels = np.clip(rng.normal(color, 30, (40, 50, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vit.data.loaders.available_cores", lambda: 0)  # no processes that load
    return tmp_path


def test_features_have_the_shapes_on_the_page(files: Path) -> None:
    first, frozen, *_ = blocks(PAGES["backbone.md"])
    names = run(first, frozen)
    backbone = names["backbone"]
    assert names["features"].shape == (2, backbone.num_features)
    assert names["tokens"].shape == (2, 1 + 14 * 20, backbone.layer_channels[-1])
    torch.testing.assert_close(names["pooled"], names["features"])
    assert [tuple(x.shape) for x in names["maps"]] == [
        (2, backbone.layer_channels[i], 14, 20) for i in (2, 5, 8, 11)
    ]


@pytest.mark.parametrize("name", ["vit_b16", "r50_vit_b16", "bit_r50x1"])
def test_the_table_of_attributes_holds(name: str) -> None:
    with torch.device("meta"):
        model = vit.create_model(name, num_classes=0)
    if name == "bit_r50x1":
        assert model.layer_channels == [256, 512, 1024, 2048]
        assert model.layer_strides == [4, 8, 16, 32]
        assert (model.num_features, model.patch_size) == (2048, 32)
    else:
        assert model.layer_channels == [768] * 12
        assert model.layer_strides == [16] * 12
        assert (model.num_features, model.patch_size) == (768, 16)


def test_timms_methods_have_the_shapes_on_the_page(files: Path) -> None:
    names = run(blocks(PAGES["backbone.md"])[2])
    assert names["batch"].shape == (1, 3, 224, 224)
    assert names["tokens"].shape == (1, 1 + 14 * 14, 192)
    assert names["logits"].shape == (1, 10) and not names["logits"].any()
    assert names["embedding"].shape == (1, names["model"].num_features)


def test_maps_have_the_shapes_on_the_page(files: Path) -> None:
    names = run(*blocks(PAGES["inspection.md"]))
    shapes = {name: tuple(names[name].shape) for name in ("seen", "relevance", "maps", "weights")}
    assert shapes == {
        "seen": (2, 14, 20),
        "relevance": (2, 14, 20),
        "maps": (2, 2, 3, 14, 20),
        "weights": (2, 1, 3, 281, 281),
    }
    assert names["pixels"].shape == (2, 12, 3)
    listed = re.findall(r"`(\w+)`", PAGES["inspection.md"].split("| function |")[1])
    assert set(names["inspection"].__all__) <= set(listed)


def test_a_fit_in_python_returns_metrics_and_a_classifier(files: Path) -> None:
    names = run(blocks(PAGES["backbone.md"])[3])
    assert names["accuracy"] == 1
    assert names["run"].path == Path("runs/my_photos")
    assert names["classifier"].classes == sorted(COLORS)


def test_objects_are_images_of_a_run(files: Path) -> None:
    images = run(*blocks(PAGES["data.md"]))["images"]
    assert images.classes == sorted(COLORS) and images.counts == [10, 10, 0]


def test_the_parts_of_ones_own_are_taken(files: Path) -> None:
    names = run(*blocks(PAGES["finetuning.md"]))
    augment = TrainTransform(extra=names["Speckle"](20))
    assert vit.ImageData("digits", augment=augment).augment is augment
    logits = torch.randn(2, 3)
    losses = [Loss(function=names["focal"])(logits, t) for t in (torch.arange(2), torch.eye(2, 3))]
    assert losses[0] == losses[1]


def test_a_detector_trains_down_to_the_patches(files: Path) -> None:
    names = run(blocks(PAGES["backbone.md"])[4])
    assert len(names["losses"]) == 4
    assert all(loss.isfinite() for loss in names["losses"].values())
    gradient = names["backbone"].patch_embed.proj.weight.grad
    assert gradient.isfinite().all() and gradient.abs().sum() > 0
    pyramid = names["detector"].backbone
    with torch.no_grad():
        maps = pyramid(torch.randn(1, 3, 64, 96))
        same = vit.create_model("bit_r50x1", num_classes=0)
        stages = type(pyramid)(same, layers=[0, 1, 2, 3])(torch.randn(1, 3, 64, 96))
    wanted = [(256, 64 // s, -(-96 // s)) for s in (4, 8, 16, 32, 64)]
    assert [tuple(x.shape[1:]) for x in maps.values()] == wanted
    assert [tuple(x.shape[1:]) for x in stages.values()] == wanted


def test_rotary_positions_are_an_option() -> None:
    names = run(blocks(PAGES["backbone.md"])[7])
    assert names["dinov3"].config.rotary["rescale"] == names["own"].config.rotary["rescale"] == 2
    assert names["own"].pos_embed is None


def test_timm_builds_what_the_page_says(files: Path) -> None:
    pytest.importorskip("timm")
    names = run(blocks(PAGES["backbone.md"])[6])
    assert [tuple(x.shape[1:]) for x in names["maps"]] == [
        (channels, side, side)
        for channels, side in zip(names["channels"], (16, 8, 4, 2), strict=True)
    ]
    assert names["channels"] == [256, 512, 1024, 2048]
    assert names["tokens"].shape == (1, 1 + 14 * 14, 192)
    assert names["model"].default_cfg["input_size"] == (3, 224, 224)


def test_a_probe_on_frozen_features_separates_colours(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run(blocks(PAGES["backbone.md"])[5])
    assert names["accuracy"] == 1
    assert "test accuracy 1.000, 30 images of 3 classes: train 24" in capsys.readouterr().out


def test_your_own_loop_runs(files: Path) -> None:
    page = PAGES["your_own_loop.md"].replace("steps=10", "steps=2").replace('val": 5', 'val": 2')
    names = run(*blocks(page))
    assert names["scores"]["test/acc1"] == names["accuracy"] == names["kappa"] == 1
    assert "val/kappa" in Path("runs/mine/metrics.csv").read_text().splitlines()[0]
    assert names["run"].summary["steps"] == 2 and names["again"].classes == sorted(COLORS)


def test_the_report_reads_as_on_the_page(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGES["weights.md"]
    run(blocks(page)[0])
    printed = capsys.readouterr().out
    assert printed.startswith("loaded 150 tensors from B_16.npz")
    assert f"```\n{printed}```" in page


def test_the_conversions_run_and_are_exact(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGES["weights.md"]
    lines = re.findall(r"^vit (convert .*)", page, flags=re.MULTILINE)
    assert len(lines) == 5
    shown = []
    for line in lines:
        assert main(line.split()) == 0
        captured = capsys.readouterr()
        shown.append(f"$ vit {line}\n{captured.err}{captured.out}")
    assert f"```\n{shown[3]}{shown[4]}```" in page
    original, back = load_file("model/model.safetensors"), load_file("my_model/model.safetensors")
    assert original.keys() == back.keys()
    assert all(torch.equal(original[name], back[name]) for name in original)


def test_every_field_of_the_report_is_explained() -> None:
    for field in fields(LoadReport):
        assert f"`{field.name}`" in PAGES["weights.md"]


def test_publishing_takes_what_the_page_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def bound(*args: Any, **options: Any) -> None:
        calls.append(signature(push_to_hub).bind(*args, **options).arguments)

    monkeypatch.setattr("vit.extensions.formats.publish.push_to_hub", bound)
    run(blocks(PAGES["weights.md"])[2])
    assert calls == [
        {"directory": "runs/my_photos-finetune", "repository": "me/my-photos", "private": True}
    ]


def test_the_python_of_the_readme_runs(files: Path) -> None:
    (files / "runs" / "my_photos-finetune").mkdir(parents=True)
    (files / "model").rename(files / "runs" / "my_photos-finetune" / "model")
    (files / "my_photos" / "red" / "0.png").rename(files / "photo.jpg")
    [code] = blocks(README)
    names = run("import torch; images = torch.randn(2, 3, 224, 224)", code)
    assert [tuple(x.shape) for x in names["maps"]] == [(2, 192, 14, 14)] * 4
    assert len(names["classifier"].predict(["photo.jpg"], top=5)[0].classes) == 5


def test_every_link_and_command_exists() -> None:
    for name, page in {"README.md": README, **PAGES}.items():
        folder = ROOT if name == "README.md" else ROOT / "docs"
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page):
            assert (folder / target).exists(), f"{name}: {target}"
        typed = set(re.findall(r"(?:^|`)vit ([a-z]+)", page, flags=re.MULTILINE))
        assert typed - {"train"} <= rows("commands").keys()
