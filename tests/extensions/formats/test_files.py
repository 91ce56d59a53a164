"""Files of weights of other programs: opened without code, whole, and with the head's rows."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.serialization import set_crc32_options

from tests.extensions.formats.test_google import vit_weights
from tests.models.small_models import filled
from vit.errors import UserError
from vit.extensions.formats.class_names import imagenet_classes
from vit.extensions.formats.convert import convert
from vit.models.config import ViTConfig
from vit.models.zoo import build_model, config_from_dict
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

SUFFIXES = {"native": "", "timm": "", "torchvision": ".pth", "huggingface": "", "google": ".npz"}
TINY = ViTConfig(
    image_size=32, patch_size=8, width=32, depth=2, mlp_dim=40, num_heads=4, num_classes=3
)


@pytest.mark.parametrize("layout", [*SUFFIXES, "bare"])
def test_a_head_without_class_names_is_kept_by_number_alone(layout: str, tmp_path: Path) -> None:
    """Hugging Face's LABEL_0, LABEL_1 ... are no names."""
    model = filled(build_model(replace(TINY, activation="gelu")))
    path = tmp_path / f"out{SUFFIXES.get(layout, '.pth')}"
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
    assert report.reinitialised == ["head"] and report.known_rows == [] and report.classes == names
    assert report.head == "zeros for 3 classes, the file does not name its classes"


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


def test_imagenets_rows_follow_any_of_its_names(tmp_path: Path) -> None:
    """Ids and words are those of timm's lists."""
    info = pytest.importorskip("timm.data").ImageNetInfo("imagenet-1k")
    ids, words = info.label_names(), info.label_descriptions()
    ours = imagenet_classes()
    config = config_from_dict({**TINY.to_dict(), "num_classes": 1000})
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
