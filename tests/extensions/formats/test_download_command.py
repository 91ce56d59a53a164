"""`vit download`, `vit models --weights`, and commands that take the name of published weights."""

import json
import shutil
from pathlib import Path

import pytest

from tests.command import Vit
from tests.extensions.formats.mirror import BACKBONE, CLASSIFIER, IN21K, Mirror
from vit.extensions.formats.published import table


def test_the_table_of_weights(vit: Vit) -> None:
    done = vit("models", "--weights")
    rows = {line.split()[0]: line for line in done.out.splitlines() if "." in line.split(" ")[0]}
    assert list(rows) == list(table())
    assert rows["dinov2_s14.lvd142m"].split()[1:7] == ["88", "MB", "0", "224", "81.1", "apache-2.0"]
    assert "~120 MB   21843" in rows["vit_s16.augreg_in21k"]


def test_weights_are_filtered_by_name_and_licence(vit: Vit) -> None:
    done = vit("models", "--weights", "vit_h14.*", "--licence", "Apache-2.0", "--json")
    assert [row["name"] for row in json.loads(done.out)] == ["vit_h14.orig_in21k"]
    rows = json.loads(vit("models", "--weights", "dinov2_s14.*", "--json").out)
    assert rows[0]["bytes"] == 88_283_115 and rows[0]["image_size"] == 224
    assert rows[0]["accuracy_source"].startswith("https://github.com/facebookresearch/dinov2/")
    refused = vit("models", "--weights", "--licence", "mit")
    assert refused.status == 2
    assert "apache-2.0 | bsd-3-clause | cc-by-nc-4.0" in refused.err
    assert "--weights" in vit("models", "--licence", "mit").err


def test_a_download_fills_the_cache_or_a_folder_that_can_be_one(
    mirror: Mirror, vit: Vit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = mirror.put(CLASSIFIER)
    done = vit("download", "vit_ti16", "--to", "usb")
    assert done.status == 0, done.err
    file = Path(done.out.strip())
    assert file.parts[:3] == ("usb", "weights", CLASSIFIER) and file.read_bytes() == content
    monkeypatch.setenv("VIT_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused = vit("convert", CLASSIFIER, "out", "--to", "native")
    assert refused.status == 2 and refused.err.count("\n") == 1
    assert f"copy what is in DIR to {tmp_path / 'other'}" in refused.err
    shutil.copytree("usb", tmp_path / "other")
    assert vit("convert", CLASSIFIER, "out", "--to", "native").status == 0
    assert len(mirror.asked) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("vit_s17",), "did you mean 'vit_s16'"),
        (("vit_b16", "beit_b16"), "has relative positions"),
        (("vit_ti16", "--to", "file"), "--to file: cannot be written to (File exists)"),
    ],
)
def test_mistakes_come_before_the_first_download(
    args: tuple[str, ...], message: str, mirror: Mirror, vit: Vit
) -> None:
    Path("file").touch()
    done = vit("download", *args)
    assert done.status == 2 and message in done.err and done.err.count("\n") == 1
    assert mirror.asked == []


def test_commands_take_a_name(mirror: Mirror, vit: Vit, photos: Path) -> None:
    mirror.put(CLASSIFIER)
    done = vit("classify", CLASSIFIER, photos / "red" / "00.jpg", "--json")
    assert len(json.loads(done.out)[0]["top"]) == 5
    small = ("--image-size", 32, "--num-workers", 0)
    done = vit("knn", "vit_ti16", "--data", photos, *small, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["model"] == "vit_ti16"
    assert vit("convert", CLASSIFIER, "model", "--to", "timm").status == 0
    same = vit("convert", CLASSIFIER, "model", "--compare", "--json")
    assert json.loads(same.out)["relative"] == 0
    assert len(mirror.asked) == 1


def test_what_a_model_costs_needs_no_download(mirror: Mirror, vit: Vit) -> None:
    [row] = json.loads(vit("compare", IN21K, "--json").out)
    assert row["params"] == 5_717_416 + 20_843 * 193
    done = vit("compare", "--recipe", "finetune", "--json")
    assert done.status == 0, done.err
    assert BACKBONE in done.out and mirror.asked == []


def test_finetune_of_null_is_random_weights_and_another_model_names_its_own(
    mirror: Mirror, vit: Vit, photos: Path
) -> None:
    mirror.put(BACKBONE)
    fit = ("fit", "-c", "finetune", "--data.root", photos, "--trainer.accelerator=cpu")
    null = ("--model.pretrained=null", "--model.name=vit_ti16", "--data.image_size=32",
            "--model.architecture={depth: 1}")  # fmt: skip
    done = vit(*fit, "--trainer.max_steps=1", *null)
    assert done.status == 0, done.err
    assert "parameters" in done.err and mirror.asked == []
    other = vit(*fit, "--model.name=vit_ti16")
    assert other.status == 2
    assert "is not a vit_ti16: it has patch_size=14" in other.err
    assert "published weights of vit_ti16: vit_ti16.augreg_in21k_ft_in1k" in other.err
