"""Head, positions and channels become what was asked for, and the report says so."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.serialization import set_crc32_options

from tests.models.small_models import filled
from vit.errors import UserError
from vit.extensions.formats.class_names import imagenet_classes
from vit.extensions.formats.convert import convert
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import build_model
from vit.preprocessing import Preprocess
from vit.tables import TABLES, resolve
from vit.weights.native import save_native
from vit.weights.pretrained import create_model, load_pretrained
from vit.weights.report import LoadReport

FORMATS = {name: resolve(row) for name, row in TABLES["formats"].items()}
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


def test_the_head_is_kept_when_the_classes_agree(file: Path) -> None:
    whole = filled(build_model(TINY)).state_dict()
    for options in ({}, {"num_classes": 3}, {"classes": ["a", "b", "c"]}):
        model, report = load_pretrained(file, **options)
        assert torch.equal(model.state_dict()["head.weight"], whole["head.weight"])
        assert not report.reinitialised and report.classes == ["a", "b", "c"]


def test_a_head_in_another_order_is_reordered(file: Path) -> None:
    whole = filled(build_model(TINY)).state_dict()
    model, report = load_pretrained(file, classes=["c", "a", "b"])
    assert torch.equal(model.state_dict()["head.bias"], whole["head.bias"][[2, 0, 1]])
    assert report.classes == ["c", "a", "b"] and not report.reinitialised
    assert any("order" in line for line in report.lines())


@pytest.mark.parametrize("layout", [*FORMATS, "bare"])
def test_a_head_without_class_names_is_kept_by_number_alone(layout: str, tmp_path: Path) -> None:
    """Hugging Face's LABEL_0, LABEL_1 ... are no names."""
    model = filled(build_model(replace(TINY, activation="gelu")))
    path = tmp_path / f"out{FORMATS[layout].suffix if layout in FORMATS else '.pth'}"
    save_native(tmp_path / "native", model, classes=None, preprocess=None, extra={})
    if layout == "bare":
        torch.save({"model": model.state_dict()}, path)
    else:
        convert(tmp_path / "native", path, layout)
    heads = {"num_heads": 4} if layout in ("bare", "torchvision") else {}
    names = ["p", "q", "r"]
    keeping: list[dict[str, Any]] = [
        {"num_classes": 3},
        {"classes": names, "head": "keep"},
        {"classes": names, "head": "score"},
    ]
    for options in keeping:
        loaded, report = load_pretrained(path, **heads, **options)
        for name in ("head.weight", "head.bias"):
            assert torch.equal(loaded.state_dict()[name], model.state_dict()[name])
        assert report.head == "rows of 3 classes kept by number" and not report.reinitialised
        assert report.classes == options.get("classes")
    loaded, report = load_pretrained(path, **heads, classes=names)
    assert not loaded.get_parameter("head.weight").any()
    assert report.reinitialised == ["head"] and report.kept == [] and report.classes == names
    assert report.head == "zeros for 3 classes, the file does not name its classes"


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
        _, report = load_pretrained(tmp_path / name, **options)
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


@pytest.mark.parametrize("options", [{"num_classes": 7}, {"classes": ["p", "q", "x"]}])
def test_a_replaced_head_is_zero_and_said(file: Path, options: dict[str, Any]) -> None:
    model, report = load_pretrained(file, **options)
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    assert not head.weight.any() and not head.bias.any()
    assert report.reinitialised == ["head"]
    assert any(line.startswith("head: zeros") for line in report.lines())
    assert report.classes == options.get("classes")


def test_rows_of_known_classes_move_by_name(file: Path) -> None:
    old = load_pretrained(file)[0].state_dict()
    model, report = load_pretrained(file, classes=["x", "c", "y", "a"])
    for name in ("head.weight", "head.bias"):
        new = model.state_dict()[name]
        assert torch.equal(new[[1, 3]], old[name][[2, 0]]) and not new[[0, 2]].any()
    assert report.kept == [1, 3] and report.reinitialised == ["head"]
    assert report.head == "rows of 2 classes kept by name; new: 'x', 'y'; gone: 'b'"
    fewer, report = load_pretrained(file, classes=["c", "a"])
    assert torch.equal(fewer.state_dict()["head.bias"], old["head.bias"][[2, 0]])
    assert report.head.endswith("name; gone: 'b'") and not report.reinitialised


def test_num_classes_zero_gives_the_backbone_and_says_so(file: Path) -> None:
    model, report = load_pretrained(file, num_classes=0)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 32)
    assert "head" in report.left_out and not report.reinitialised


def test_the_tanh_layer_goes_with_the_head(tmp_path: Path) -> None:
    config = ViTConfig.from_dict({**TINY.to_dict(), "representation_size": 16})
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
    config = ViTConfig.from_dict({**TINY.to_dict(), "layer_norm_eps": 1e-3, "activation": "gelu"})
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


def test_what_does_not_fit_is_listed_with_both_signs(tmp_path: Path) -> None:
    state = filled(build_model(TINY)).state_dict()
    state["blocks.0.attn.extra.weight"] = state.pop("blocks.1.mlp.fc2.bias")
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UserError) as raised:
        load_pretrained(tmp_path / "w.pth", num_heads=4)
    text = str(raised.value)
    assert "-blocks.1.mlp.fc2.bias" in text and "+blocks.0.attn.extra.weight" in text
    assert "\n" not in text
    state["blocks.1.mlp.fc2.bias"] = state.pop("blocks.0.attn.extra.weight")[1:]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"fc2.bias \[31\] instead of \[32\]"):
        load_pretrained(tmp_path / "w.pth", num_heads=4)


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


def test_files_that_need_code_are_refused_and_do_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.save({"state_dict": {}, "args": Malice()}, tmp_path / "a.pth")
    (tmp_path / "b.pth").write_bytes(pickle.dumps(Malice(), protocol=2))
    np.savez(tmp_path / "c.npz", **{"embedding/kernel": np.array([Malice()], dtype=object)})
    for name in ("a.pth", "b.pth", "c.npz"):
        with pytest.raises(UserError, match=rf"{name} needs code to be executed.*refused"):
            load_pretrained(tmp_path / name)
    assert "executed" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"hello world, this is text", "neither"),
        (b"PK\x03\x04 and then nothing of use", "damaged"),
    ],
)
def test_files_that_are_no_weights_say_what_they_are(
    content: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(UserError, match=expected) as raised:
        load_pretrained(tmp_path / "w.npz")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", ["npz", "pth"])
def test_a_damaged_foreign_file_never_loads_as_other_weights(suffix: str, tmp_path: Path) -> None:
    from tests.extensions.formats.test_google import vit_weights

    path = tmp_path / f"w.{suffix}"
    if suffix == "npz":
        np.savez(path, **vit_weights())
    else:
        torch.save(filled(build_model(TINY)).state_dict(), path)
    whole, state = path.read_bytes(), load_pretrained(path, num_heads=4)[0].state_dict()
    refused = 0
    for at in range(7, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            loaded = load_pretrained(path, num_heads=4)[0].state_dict()
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
        else:  # padding between members, and fields of the archive that nobody reads
            assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert refused > 20
    for share in (0.2, 0.6, 0.98):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError):
            load_pretrained(path)


def test_a_file_saved_without_checksums_loads(tmp_path: Path) -> None:
    state = filled(build_model(TINY)).state_dict()
    set_crc32_options(False)
    try:
        torch.save(state, tmp_path / "weights.pth")
    finally:
        set_crc32_options(True)
    loaded = load_pretrained(tmp_path / "weights.pth", num_heads=4)[0].state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in state)


@pytest.mark.parametrize(
    "wrapper", ["model.", "model._orig_mod.", "_orig_mod.model.", "model._fsdp_wrapped_module."]
)
def test_a_lightning_checkpoint_of_ours_is_read(wrapper: str, tmp_path: Path) -> None:
    model = filled(build_model(TINY))
    checkpoint = {
        "state_dict": {wrapper + key: value for key, value in model.state_dict().items()},
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


def test_a_run_directory_is_read(file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    file.rename(run / "model")
    assert load_pretrained(run)[1].classes == ["a", "b", "c"]


def test_imagenet_names_are_known_for_a_thousand_classes(tmp_path: Path) -> None:
    config = ViTConfig.from_dict({**TINY.to_dict(), "num_classes": 1000})
    torch.save(build_model(config).state_dict(), tmp_path / "w.pth")
    _, report = load_pretrained(tmp_path / "w.pth", num_heads=4)
    assert report.classes is not None
    assert report.classes[0] == "tench" and report.classes[999] == "toilet tissue"


def test_imagenets_rows_follow_any_of_its_names(tmp_path: Path) -> None:
    """Ids and words are those of timm's lists."""
    info = pytest.importorskip("timm.data").ImageNetInfo("imagenet-1k")
    ids, words = info.label_names(), info.label_descriptions()
    ours = imagenet_classes()
    config = ViTConfig.from_dict({**TINY.to_dict(), "num_classes": 1000})
    model = filled(build_model(config))
    weight = model.get_parameter("head.weight")
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    for name, classes in (("ours", ours), ("ids", ids)):
        save_native(tmp_path / name, model, classes=classes, preprocess=None, extra={})
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).tolist()
    first = [text.partition(", ")[0] for text in words]
    names = [{name, *text.split(", ")} for name, text in zip(ours, words, strict=True)]
    clear = [i for i in range(0, 1000, 9) if sum(first[i] in each for each in names) == 1]
    assert len(clear) > 100
    asked: list[tuple[list[str], list[int]]] = [
        (ids, list(range(1000))),
        ([ids[i] for i in order], order),
        (sorted(ours), [ours.index(name) for name in sorted(ours)]),
        (ids[100:110], list(range(100, 110))),
        ([first[i].replace(" ", "_") for i in clear[::-1]], clear[::-1]),
    ]
    for file in ("bare.pth", "ours", "ids"):
        facts = {"num_heads": 4} if file == "bare.pth" else {}
        for classes, rows in asked:
            loaded, report = load_pretrained(tmp_path / file, classes=classes, **facts)
            assert torch.equal(loaded.get_parameter("head.weight"), weight[rows])
            assert not report.reinitialised and report.classes == classes
            assert report.head.startswith(f"rows of {len(rows):,} classes kept by name")
        # The crane is a bird and a machine, unless the file itself calls one of them so.
        unclear = ["crane", "tench" if file != "ours" else "my cat"]
        for foreign in ([f"n{i}" for i in range(1000)], [*ids[:5], "my cat"], unclear):
            _, report = load_pretrained(tmp_path / file, classes=foreign, **facts)
            assert report.reinitialised == ["head"], (file, foreign[:3])


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


@pytest.mark.parametrize("options", [{}, {"pretrained": False}])
def test_a_name_that_is_a_path_is_told_so_with_and_without_weights(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"is a path: create_model\(pretrained="):
        create_model(str(tmp_path), **options)


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
        with pytest.raises(UserError, match=hint):
            create_model(name)
