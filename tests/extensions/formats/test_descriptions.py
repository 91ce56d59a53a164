"""Values of other libraries' JSON files that cannot be: one line that names the place."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vit
from tests.models.small_models import filled
from vit.errors import UserError

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

ODD: tuple[Any, ...] = (None, True, -1, 0, float("nan"), 10**400, "x", [[]], [0.5] * 3, {"a": 1})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories "timm" and "hf" as the two libraries write them."""
    folder = tmp_path_factory.mktemp("foreign")
    arguments = {"depth": 1, "embed_dim": 32, "num_heads": 2, "img_size": 32}
    model = filled(timm.create_model("vit_tiny_patch16_224", num_classes=3, **arguments))
    config = {"model_args": arguments}
    timm.models.save_for_hf(model, folder / "timm", model_config=config, safe_serialization=True)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=64, image_size=32, num_labels=3)
    filled(transformers.ViTForImageClassification(config)).save_pretrained(folder / "hf")
    processor = {"size": {"height": 32, "width": 32}, "resample": 3, "image_mean": [0.5] * 3}
    (folder / "hf" / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def fields(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from fields(value, (*prefix, name))


def changed(values: dict[str, Any], path: tuple[str, ...], *value: object) -> str:
    """The document with another value, or without one, in one place."""
    values = place = json.loads(json.dumps(values))
    for part in path[:-1]:
        place = place[part]
    del place[path[-1]]
    if value:
        place[path[-1]] = value[0]
    return json.dumps(values)


@pytest.mark.parametrize(
    ("library", "name"),
    [("timm", "config.json"), ("hf", "config.json"), ("hf", "preprocessor_config.json")],
)
def test_every_field_takes_any_value_or_is_refused_in_one_line(
    saved: Path, tmp_path: Path, library: str, name: str
) -> None:
    shutil.copytree(saved / library, tmp_path / library)
    file = tmp_path / library / name
    whole = json.loads(file.read_text())
    for path in fields(whole):
        for value in ((), *((odd,) for odd in ODD)):
            file.write_text(changed(whole, path, *value))
            try:
                vit.create_model(pretrained=file.parent, report=lambda _: None)
            except UserError as error:
                assert "\n" not in str(error), (path, value)


@pytest.mark.parametrize(
    ("library", "field", "value"),
    [
        ("timm", "pretrained_cfg.mean", ["x", 0, 0]),
        ("timm", "pretrained_cfg.input_size", [3, 32]),
        ("timm", "pretrained_cfg", "text"),
        ("timm", "model_args", [32]),
        ("timm", "model_args.img_size", [32]),
        ("hf", "layer_norm_eps", True),  # which could be read as an epsilon of 1
        ("hf", "layer_norm_eps", "x"),
        ("hf", "id2label", ["a", "b", "c"]),
        ("hf", "model_type", [0]),
    ],
)
def test_a_value_of_a_wrong_kind_that_is_read_is_refused(
    saved: Path, tmp_path: Path, library: str, field: str, value: object
) -> None:
    shutil.copytree(saved / library, tmp_path / library)
    file = tmp_path / library / "config.json"
    file.write_text(changed(json.loads(file.read_text()), tuple(field.split(".")), value))
    with pytest.raises(UserError) as raised:
        vit.create_model(pretrained=file.parent, report=lambda _: None)
    assert str(file.parent) in str(raised.value)
