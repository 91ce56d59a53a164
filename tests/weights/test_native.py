"""Our own format: exact, atomic, self-contained, and checked."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import vit
from tests.models.small_models import filled
from vit.cli.main import main
from vit.errors import UserError
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import ModelConfig, build_model
from vit.preprocessing import Preprocess
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained

TINY = ViTConfig(
    image_size=(16, 24), patch_size=8, width=32, depth=2, mlp_dim=40, num_heads=4, num_classes=3
)
CONFIGS: dict[str, ModelConfig] = {
    "vit": TINY,
    "hybrid": ViTConfig(
        image_size=32, patch_size=16, width=32, depth=1, mlp_dim=40, num_heads=4, stem_depths=(1, 1)
    ),
    "bit": ResNetConfig(depths=(1, 1), num_classes=3),
}
PREPROCESS = Preprocess(image_size=(16, 24), crop_fraction=0.9).to_dict()


def saved(directory: Path, seed: int = 0) -> nn.Module:
    model = filled(build_model(TINY), seed)
    save_native(
        directory, model, classes=["a", "b", "ü"], preprocess=PREPROCESS, extra={"recipe": "r"}
    )
    return model


def same_tensors(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_saved_model_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    model = filled(build_model(CONFIGS[kind]))
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    again, _ = load_pretrained(tmp_path)
    assert same_tensors(model, again) and again.config == CONFIGS[kind]


def test_classes_preprocessing_and_extra_travel_with_the_model(tmp_path: Path) -> None:
    saved(tmp_path)
    for info in (load_pretrained(tmp_path)[1], inspect_pretrained(tmp_path)):
        assert info.classes == ["a", "b", "ü"] and info.preprocess == PREPROCESS
    assert inspect_pretrained(tmp_path).extra == {"recipe": "r"}


def test_class_names_may_be_edited_in_config_json(tmp_path: Path) -> None:
    saved(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    values["classes"] = ["x", "y", "z"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    info = load_pretrained(tmp_path)[1]
    assert info.classes == ["x", "y", "z"]
    [note] = info.notes
    assert note.startswith("classes of ") and note.endswith(
        "differ from what was saved with the weights"
    )
    values["extra"] = {"multilabel": True}  # no word of ours
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert "multilabel" not in inspect_pretrained(tmp_path).extra


def test_a_crash_between_the_two_files_leaves_a_consistent_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, seed=0)
    replace, calls = Path.replace, []

    def crash(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", crash)
        second = filled(build_model(TINY), 1)
        save_native(tmp_path, second, classes=["p", "q", "r"], preprocess=None, extra={})
    again, info = load_pretrained(tmp_path)  # the newer weights, with their own description
    assert same_tensors(again, filled(build_model(TINY), 1))
    assert info.classes == ["p", "q", "r"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("alone", [False, True])
def test_no_flipped_bit_anywhere_changes_the_model(alone: bool, tmp_path: Path) -> None:
    """Refused, or harmless: a sweep over both files, config.json and header included."""
    model = saved(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    _, info = load_pretrained(tmp_path)
    if alone:
        config.unlink()
    for path in (weights,) if alone else (weights, config):
        whole = path.read_bytes()
        for at in range(0, min(len(whole), 4000), 37):
            bit = 1 << at % 8
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            try:
                again, described = load_pretrained(tmp_path)
            except UserError:
                continue
            assert same_tensors(again, model) and again.config == TINY
            # Names of classes may be edited in config.json; that they differ is noted.
            assert described == info or (path == config and described.notes)
        path.write_bytes(whole)


def test_training_a_loaded_model_leaves_its_file_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model, _ = load_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})  # onto what it maps
    assert same_tensors(model, load_pretrained(tmp_path)[0])


EDITS: list[tuple[str, object, str]] = [
    ("classes", "abc", "is not a list of names"),
    ("classes", ["a", "a", "b"], "has the name a twice"),
    ("classes", ["a"], "1 class names for num_classes=3"),
    ("preprocess", [1], "it is an object with the fields"),
    ("preprocess", {"image_size": [16, 24], "mean": [float("nan")] * 3}, "mean=nan must be"),
    ("preprocess", {"size": [16, 24]}, "argument 'size'; it is an object with the fields"),
    ("extra", [1], "is not an object"),
    ("extra", {"multilabel": "no"}, "is not true or false"),
    ("extra", {"thresholds": [0.5, 0.5, 2]}, "must be in [0, 1]"),
    ("extra", {"thresholds": [0.5]}, "is not a list of 3 numbers"),
    ("version", 2, "upgrade vit"),
    ("model", None, "is not an object"),
    ("model", {**TINY.to_dict(), "width": "wide"}, "width='wide'"),
]


@pytest.mark.parametrize(("field", "value", "named"), EDITS)
def test_what_a_description_says_is_checked(
    field: str, value: object, named: str, tmp_path: Path
) -> None:
    """In the header; and in config.json where it may be edited."""
    saved(tmp_path)
    path, beside = tmp_path / "model.safetensors", tmp_path / "config.json"
    text = json.dumps({**json.loads(beside.read_text(encoding="utf-8")), field: value})
    beside.write_text(text)
    places = [] if field == "model" else [beside]
    for place in (*places, path):
        if place == path:
            beside.unlink()
            digest = hashlib.sha256(text.encode()).hexdigest()
            header = {"format": "pt", "vit": text, "vit_sha256": digest}
            save_file(load_file(path), path, header)
        for read in (load_pretrained, vit.load, inspect_pretrained):
            with pytest.raises(UserError, match=re.escape(named)) as raised:
                read(tmp_path)
            assert str(raised.value).startswith(f"{place}: ") and "\n" not in str(raised.value)


def test_a_width_beyond_the_file_is_refused_without_memory_for_it(tmp_path: Path) -> None:
    """The model is compared with the file on the meta device."""
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    values["model"] |= {"width": 1 << 20, "mlp_dim": 1 << 20}  # 12 TB a layer
    save_file(load_file(path), path)  # without a header, as another hand saves it
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"does not fit: .*instead of"):
        load_pretrained(tmp_path)


def test_a_header_without_its_digest_is_damaged(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for text in (json.dumps({**values, "sha256": None}), "[1]", "{", "[" * 100_000):
        digest = hashlib.sha256(text.encode()).hexdigest()
        save_file(load_file(path), path, {"vit": text, "vit_sha256": digest})
        with pytest.raises(UserError, match="damaged") as raised:
            load_pretrained(tmp_path)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kept", ["header", "config.json"])
def test_missing_tensors_are_named_in_one_line(
    kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    with safe_open(str(path), framework="pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    for name in ("patch_embed.proj.weight", "cls_token", "blocks.0.norm1.bias"):
        del tensors[name]
    save_file(tensors, path, header if kept == "header" else None)
    if kept != "config.json":
        (tmp_path / "config.json").unlink()
    assert main(["convert", str(path), str(tmp_path / "out"), "--to", "native"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "patch_embed.proj.weight" in line


def test_tensors_of_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    model: Any = filled(build_model(TINY))
    state = {name: tensor.long() for name, tensor in model.state_dict().items()}
    model.state_dict = lambda: state
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    with pytest.raises(UserError, match=r"is of type torch\.int64"):
        load_pretrained(tmp_path)
