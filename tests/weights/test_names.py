"""Words that mean weights are asked of a table; without its rows, models and paths work."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import vit
from vit.errors import UserError
from vit.models.zoo import build_model, model_config
from vit.tables import TABLES
from vit.weights.names import Names, architecture_of, find, locate, named, record_of
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

TINY: dict[str, Any] = {"patch_size": 8, "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = build_model(model_config("vit_ti16", image_size=16, num_classes=2, **TINY))
    save_native(tmp_path / "weights", model, classes=None, preprocess=None, extra={})
    return tmp_path / "weights"


@pytest.fixture
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "names", {})


@pytest.mark.usefixtures("no_rows")
def test_without_rows_models_and_paths_work(weights: Path) -> None:
    assert vit.create_model("ViT-Ti/16", num_classes=0, image_size=32).config.num_classes == 0
    model, report = load_pretrained(weights, classes=["a", "b"])
    assert report.classes == ["a", "b"] and model.config.num_classes == 2
    assert record_of(weights) is None and locate(weights) == (weights, None)
    assert locate("https://host/file") == ("https://host/file", None)


@pytest.mark.usefixtures("no_rows")
def test_without_rows_a_name_of_weights_is_refused_in_one_line() -> None:
    for refused in (
        lambda: vit.create_model("vit_s16", pretrained=True),
        lambda: vit.create_model("vit_s16.augreg_in21k"),
        lambda: load_pretrained("dinov2_s14"),
    ):
        with pytest.raises(UserError, match=r"^no file or directory '.*', and no published weig"):
            refused()
    with pytest.raises(UserError, match="unknown model"):
        vit.create_model("vit_nobody16")


def test_a_row_that_is_not_installed_is_refused_only_where_a_word_needs_it(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLES, "names", {"gone": "vit.gone:Gone"})
    model = vit.create_model("vit_ti16", num_classes=2, image_size=16, **TINY)
    named_classes: dict[str, Any] = {"classes": ["a", "b"], "preprocess": None, "extra": {}}
    save_native(weights, model, **named_classes)
    assert load_pretrained(weights, classes=["b", "a"])[1].classes == ["b", "a"]
    with pytest.raises(UserError, match=r"^vit\.gone:Gone is not installed: there is no vit"):
        load_pretrained("dinov2_s14")


class Toys(Names):
    """Addresses of toys, and the words for two classes."""

    def fetch(self, address: str) -> Path | None:
        return Path(address.removeprefix("toy://")) if address.startswith("toy://") else None

    def classes(self, outputs: int) -> list[str] | None:
        return ["ball", "doll"] if outputs == 2 else None


def test_a_row_of_another_package_is_asked(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys: Any = ModuleType("toys")
    toys.Toys = Toys
    monkeypatch.setitem(sys.modules, "toys", toys)
    monkeypatch.setitem(TABLES["names"], "toys", "toys:Toys")
    _, report = load_pretrained(f"toy://{weights}")
    assert report.classes == ["ball", "doll"]


def test_only_words_that_could_be_names_are_looked_up(tmp_path: Path) -> None:
    for path in ("", tmp_path, "a/b/c", "model.safetensors", "hf://org/repo", "not there.ckpt"):
        assert named(path) is None
    for word in ("vit_s16", "ViT-S/16", "timm/vit_small_patch16_224", "R50+ViT-B/16"):
        row = named(word)
        assert row is not None and row == find(word)
    assert architecture_of("R50+ViT-B/16") == "r50_vit_b16"
    for word in ("vit_s17", "hf-hub:org/model.bin", "R50+ViT-B/17.tag"):
        with pytest.raises(UserError, match=f"no file or directory '{word}'".replace("+", ".")):
            find(word)
