"""Head, positions and channels become what was asked for, and the report says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.models.small_models import filled
from vit.errors import UserError
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import build_model, config_from_dict
from vit.preprocessing import Preprocess
from vit.weights.native import save_native
from vit.weights.pretrained import create_model, load_pretrained
from vit.weights.report import LoadReport

TINY = ViTConfig(
    image_size=32, patch_size=8, width=32, depth=2, mlp_dim=40, num_heads=4, num_classes=3
)
PREPROCESS = Preprocess(image_size=(32, 32)).to_dict()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = filled(build_model(TINY))
    save_native(tmp_path / "m", model, classes=["a", "b", "c"], preprocess=None, extra={})
    return tmp_path / "m"


def test_the_report_is_given_once_and_printed_by_default(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_model(pretrained=file)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("loaded") == 1
    reports: list[LoadReport] = []
    create_model(pretrained=file, report=reports.append)
    assert len(reports) == 1 and capsys.readouterr().err == ""


def test_every_load_has_a_line_for_the_head(file: Path, tmp_path: Path) -> None:
    save_native(
        tmp_path / "backbone",
        filled(build_model(replace(TINY, num_classes=0))),
        classes=None,
        preprocess=None,
        extra={},
    )
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("m", {}, "head: 3 outputs, as in the file"),
        ("m", {"num_classes": 3}, "head: rows of 3 classes kept by number"),
        ("m", {"classes": ["a", "b", "c"]}, "head: rows of 3 classes kept by name"),
        (
            "m",
            {"classes": ["c", "a", "b"]},
            "head: rows of 3 classes kept by name, in the order of the data's",
        ),
        ("m", {"classes": ["a", "x"]}, "head: rows of 1 classes kept by name; new: 'x'; gone: "),
        ("m", {"classes": ["x", "y", "z"]}, "head: zeros for 3 classes, the file has others"),
        ("m", {"num_classes": 5}, "head: zeros for 5 classes, the file has 3"),
        ("m", {"num_classes": 0}, "left out: head, num_classes=0 asks for features"),
        ("backbone", {}, "head: the file has none"),
        ("backbone", {"num_classes": 0}, "head: the file has none"),
        ("backbone", {"num_classes": 5}, "head: zeros for 5 classes, the file has no head"),
    ]
    for name, options, line in cases:
        model, report = load_pretrained(tmp_path / name, **options)
        if "zeros" in line:
            assert not any(p.any() for n, p in model.named_parameters() if n.startswith("head."))
            assert report.reinitialised == ["head"] and report.classes == options.get("classes")
        about = [text for text in report.lines() if "head" in text.partition(",")[0]]
        assert len(about) == 1 and about[0].startswith(line), (options, about)


@pytest.mark.parametrize("head", ["score", "keep"])
def test_a_head_that_is_scored_or_kept_has_no_new_rows(file: Path, head: Any) -> None:
    asked: list[dict[str, Any]] = [{"num_classes": 4}, {"classes": ["a", "b", "c", "d"]}]
    if head == "score":
        asked.append({"classes": ["a", "b", "x"]})
    for options in asked:
        with pytest.raises(UserError, match=rf"{file.name} knows other classes: \d are asked for"):
            load_pretrained(file, head=head, **options)
    by_name, _ = load_pretrained(file, head=head, classes=["c", "a", "b"])
    bias = filled(build_model(TINY)).get_parameter("head.bias")
    order = [2, 0, 1] if head == "score" else [0, 1, 2]
    assert torch.equal(by_name.get_parameter("head.bias"), bias[order])


def test_rows_of_known_classes_move_by_name(file: Path) -> None:
    old = load_pretrained(file)[0].state_dict()
    model, report = load_pretrained(file, classes=["x", "c", "y", "a"])
    for name in ("head.weight", "head.bias"):
        new = model.state_dict()[name]
        assert torch.equal(new[[1, 3]], old[name][[2, 0]]) and not new[[0, 2]].any()
    assert report.known_rows == [1, 3] and report.reinitialised == ["head"]
    assert report.head == "rows of 2 classes kept by name; new: 'x', 'y'; gone: 'b'"
    reordered, report = load_pretrained(file, classes=["c", "a", "b"])
    assert torch.equal(reordered.state_dict()["head.bias"], old["head.bias"][[2, 0, 1]])
    assert report.classes == ["c", "a", "b"] and not report.reinitialised
    fewer, report = load_pretrained(file, classes=["c", "a"])
    assert torch.equal(fewer.state_dict()["head.bias"], old["head.bias"][[2, 0]])
    assert report.head.endswith("name; gone: 'b'") and not report.reinitialised


def test_the_tanh_layer_goes_with_the_head(tmp_path: Path) -> None:
    config = config_from_dict({**TINY.to_dict(), "representation_size": 16})
    model = filled(build_model(config))
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    replaced, report = load_pretrained(tmp_path, num_classes=5)
    assert replaced.config.representation_size is None and "pre_logits" in report.left_out
    kept, _ = load_pretrained(tmp_path, num_classes=5, representation_size=16)
    assert torch.equal(kept.state_dict()["pre_logits.fc.weight"], model.pre_logits[0].weight)


def test_positions_are_resized_by_the_files_rule_and_said(file: Path) -> None:
    table = filled(build_model(TINY)).state_dict()["pos_embed"]
    model, report = load_pretrained(file, image_size=(48, 16))
    grid = table[:, 1:].reshape(1, 4, 4, 32).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, (6, 2), mode="bilinear", align_corners=True)
    expected = torch.cat([table[:, :1], grid.flatten(2).mT], 1)
    assert torch.equal(model.state_dict()["pos_embed"], expected)
    assert report.resized == ["positions from 4x4 to 6x2 patches (bilinear_corners)"]
    assert model.config.size == (48, 16)


def test_training_options_are_the_users_and_arithmetic_is_the_files(tmp_path: Path) -> None:
    config = config_from_dict({**TINY.to_dict(), "layer_norm_eps": 1e-3, "activation": "gelu"})
    model = build_model(config)
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    loaded, _ = load_pretrained(tmp_path, dropout=0.1, drop_path=0.2)
    assert (loaded.config.dropout, loaded.config.drop_path) == (0.1, 0.2)
    assert (loaded.config.layer_norm_eps, loaded.config.activation) == (1e-3, "gelu")


def test_a_name_must_be_the_files_architecture(file: Path) -> None:
    with pytest.raises(UserError, match=r"not a vit_b16.*width=32 instead of 768"):
        create_model("vit_b16", pretrained=file)
    with pytest.raises(UserError, match="ResNet"):
        create_model("bit_r50x1", pretrained=file)


def test_a_lightning_checkpoint_of_ours_is_read(tmp_path: Path) -> None:
    model = filled(build_model(TINY))
    checkpoint = {
        "state_dict": {f"model.{key}": value for key, value in model.state_dict().items()},
        "optimizer_states": [],
        "vit": {
            "config": TINY.to_dict(),
            "classes": ["a", "b", "c"],
            "preprocess": PREPROCESS,
            "weights": "ema",
        },
    }
    torch.save(checkpoint, tmp_path / "last.ckpt")
    loaded, report = load_pretrained(tmp_path / "last.ckpt")
    assert loaded.config == TINY
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True)
    )
    assert report.classes == ["a", "b", "c"] and report.preprocess == PREPROCESS
    assert any("average" in line for line in report.lines())


def test_without_a_name_or_a_file_the_way_out_is_named() -> None:
    with pytest.raises(UserError, match="pretrained="):
        create_model()
    with pytest.raises(UserError, match="no file or directory 'nowhere'"):
        create_model(pretrained="nowhere")


def test_pretrained_false_means_no_weights() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = create_model("vit_ti16", depth=1, num_classes=3).state_dict()
        torch.manual_seed(0)
        state = create_model("vit_ti16", depth=1, num_classes=3, pretrained=False).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    with pytest.raises(UserError, match="needs a name"):
        create_model(pretrained=False)


def test_positions_of_variants_are_named_where_they_are_refused() -> None:
    with pytest.raises(UserError, match=r"variant=\{'positions': 'relative'\}"):
        create_model("vit_ti16", pos_embed="relative")
    assert create_model("vit_ti16", depth=1, variant={"positions": "relative"}).config.variant


@pytest.mark.parametrize("channels", [1, 2, 5, 16])
@pytest.mark.parametrize("kind", ["vit", "bit"])
def test_input_filters_are_those_of_timms_adapt_input_conv(
    channels: int, kind: str, tmp_path: Path
) -> None:
    from timm.models._manipulate import adapt_input_conv

    config = TINY if kind == "vit" else ResNetConfig(image_size=32, num_classes=3, depths=(1,) * 4)
    model = filled(build_model(config))
    save_native(tmp_path, model, classes=["a", "b", "c"], preprocess=None, extra={})
    ours, report = load_pretrained(tmp_path, in_channels=channels)
    name = "patch_embed.proj.weight" if kind == "vit" else "stem.conv.weight"
    theirs = adapt_input_conv(channels, model.state_dict()[name])
    torch.testing.assert_close(ours.state_dict()[name], theirs)
    assert report.resized == [f"input filters from 3 to {channels} channels"]


def test_a_name_that_is_a_path_or_anothers_name_of_weights_says_how_to_load_it(
    tmp_path: Path,
) -> None:
    for name, hint in ((str(tmp_path), "pretrained="), ("vit_tiny_patch16_224", "pretrained=True")):
        for pretrained in (None, False):
            with pytest.raises(UserError, match=hint):
                create_model(name, pretrained=pretrained)
