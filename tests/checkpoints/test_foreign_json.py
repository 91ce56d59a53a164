"""Values of foreign JSON files that cannot be: one line that names the file and the field."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vit
from vit.errors import UserError

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 3, float("nan"), 10**400, "x", [], [[]], [0.5] * 3, {"a": 1},
)  # fmt: skip
ABSENT = object()
BEYOND_OURS = ("auto_map", "model_args.depth", "pretrained_cfg.url")
"""Fields that nothing reads: any value of them is accepted."""


def randomise(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories "timm" and "hf" as the two libraries write them."""
    from timm.models import save_for_hf  # pyright: ignore[reportPrivateImportUsage]

    folder = tmp_path_factory.mktemp("foreign")
    arguments = {"depth": 1, "embed_dim": 32, "num_heads": 2, "img_size": 32}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **arguments)
    save_for_hf(
        randomise(model), str(folder / "timm"), model_config={"model_args": arguments},
        safe_serialization=True,
    )  # fmt: skip
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        image_size=32, num_labels=3,
    )  # fmt: skip
    classifier = transformers.ViTForImageClassification(config)
    randomise(classifier)
    classifier.save_pretrained(folder / "hf")
    processor = {"size": {"height": 32, "width": 32}, "resample": 3, "image_mean": [0.5] * 3}
    (folder / "hf" / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def fields(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from fields(value, (*prefix, name))


def logits(directory: Path) -> torch.Tensor:
    model = vit.create_model(pretrained=directory, report=lambda _: None)
    model.eval()
    with torch.no_grad():
        return model(torch.ones(1, 3, 32, 32))


@pytest.mark.parametrize(
    ("library", "name"),
    [("timm", "config.json"), ("hf", "config.json"), ("hf", "preprocessor_config.json")],
)
def test_every_field_takes_any_value_or_is_refused_in_one_line(
    saved: Path, tmp_path: Path, library: str, name: str
) -> None:
    directory = tmp_path / library
    shutil.copytree(saved / library, directory)
    whole = json.loads((directory / name).read_text())
    for path in fields(whole):
        for value in (*ODD, ABSENT):
            changed = json.loads(json.dumps(whole))
            place = changed
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = value
            if value is ABSENT:
                del place[path[-1]]
            (directory / name).write_text(json.dumps(changed))
            try:
                logits(directory)
            except UserError as error:
                assert "\n" not in str(error), (path, value)


@pytest.mark.parametrize(
    ("library", "field", "value"),
    [
        ("timm", "pretrained_cfg.mean", ["x", 0, 0]),
        ("timm", "pretrained_cfg.input_size", [3, 32]),
        ("timm", "pretrained_cfg", "text"),
        ("timm", "model_args.img_size", [32]),
        ("hf", "layer_norm_eps", True),  # which was read as an epsilon of 1
        ("hf", "layer_norm_eps", "x"),
        ("hf", "id2label", ["a", "b", "c"]),
        ("hf", "model_type", [0]),
    ],
)
def test_a_wrong_type_is_refused_by_file_field_and_value(
    saved: Path, tmp_path: Path, library: str, field: str, value: object
) -> None:
    directory = tmp_path / library
    shutil.copytree(saved / library, directory)
    values = place = json.loads((directory / "config.json").read_text())
    *folders, last = field.split(".")
    for part in folders:
        place = place[part]
    place[last] = value
    (directory / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError) as caught:
        logits(directory)
    message = str(caught.value)
    assert str(directory / "config.json") in message
    assert f"{last}=" in message and repr(value) in message


@pytest.mark.parametrize("field", BEYOND_OURS)
def test_a_field_that_is_not_read_may_hold_anything(
    saved: Path, tmp_path: Path, field: str
) -> None:
    directory = tmp_path / "timm"
    shutil.copytree(saved / "timm", directory)
    before = logits(directory)
    values = place = json.loads((directory / "config.json").read_text())
    *folders, last = field.split(".")
    for part in folders:
        place = place[part]
    place[last] = {"any": [1, None]}
    (directory / "config.json").write_text(json.dumps(values))
    assert torch.equal(logits(directory), before)
