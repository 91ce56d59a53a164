"""`vit data check` from the command line to the manifest that `vit fit` takes."""

import csv
import errno
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command import Vit, saved
from tests.pictures import encoded, scene
from vit.data.module import ImageData
from vit.extensions.datacheck.cli_data import DEFAULT
from vit.extensions.sources import pack
from vit.recipes import find_recipe

CHECKED = ("--num-workers", "0")


@pytest.fixture
def faulty(photos: Path) -> Path:
    """The photos with a broken one, a copy of another label, and two wrong labels."""
    shutil.copy(photos / "red" / "02.jpg", photos / "blue" / "copy.jpg")
    (photos / "red" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    for name in ("20", "21"):
        pixels = np.random.default_rng(int(name)).integers(0, 90, (24, 24, 3))
        pixels[..., 2] += 150
        Image.fromarray(pixels.astype("uint8")).save(photos / "red" / f"{name}.jpg")
    return photos


def test_a_folder_is_checked_and_fixed_for_a_fit(vit: Vit, faulty: Path, tmp_path: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in faulty.rglob("*"))
    command = ("data", "check", faulty, "--model", saved(tmp_path / "model"), *CHECKED)
    done = vit(*command, "--out", "out", "--fix", "fixed.csv")
    assert done.status == 0, done.err
    table = re.findall(r"^ +(\d+)  (\S.{31}\S|\S.*?)  +(\S+) ", done.out, re.M)
    counts = {title.strip(): (int(count), example) for count, title, example in table}
    assert counts["cannot be opened"] == (1, "red/broken.jpg")
    assert counts["the same file twice"] == counts["copies with different labels"]
    assert counts["the same file twice"][0] == 1 and counts["label in doubt"][0] < 9
    assert "fixed.csv: 2 images left out, 0 labels changed" in done.out
    rows = Path("out/findings.csv").read_text().splitlines()
    assert rows[0] == "finding,image,split,label,detail,suggested,certainty"
    assert len(rows) == 1 + sum(count for count, _ in counts.values())
    doubted = [row.split(",")[1] for row in rows if row.startswith("doubt,")]
    assert {"red/20.jpg", "red/21.jpg"} <= set(doubted)
    page = Path("out/findings.html").read_text()
    assert "Cannot be opened: 1" in page and page.count("data:image") >= 5
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert sorted(path.stat().st_mtime_ns for path in faulty.rglob("*")) == before
    again = vit(*command, "--relabel", "0.5", "--fix", "changed.csv", "--json")
    assert "features of" not in again.err
    answer = json.loads(again.out)
    assert {row["kind"]: row["count"] for row in answer["findings"]}["unreadable"] == 1
    assert not answer["files"][-1].endswith(" 0 labels changed")
    assert ImageData(root="changed.csv").summary().startswith("38 images of 3 classes: train 3")
    edited = Path("changed.csv").read_text().replace("blue,train", "blue,test", 3)
    Path("changed.csv").write_text(edited.replace("blue,test", "bleu,test", 1))
    refused = vit("fit", "-c", "finetune", "--data", "changed.csv", "--model.pretrained=null")
    assert refused.status == 2 and "lacks: 'bleu'" in refused.err


def test_without_a_model_files_are_checked_and_a_line_says_how_to_check_labels(
    vit: Vit, faulty: Path
) -> None:
    done = vit("data", "check", faulty, *CHECKED)
    assert done.status == 0, done.err
    assert "note: --model (a run, weights or a name) checks labels" in done.err
    assert "label in doubt" not in done.out and "cannot be opened" in done.out
    assert "data_check/findings.html" in done.out
    assert f"pretrained: {DEFAULT}" in find_recipe("probe").read_text()


def of_12_bits() -> bytes:
    values = np.random.default_rng(0).integers(0, 4096, (64, 64)).astype(np.uint16)
    return encoded(Image.fromarray(values), "PNG")


UNUSABLE = {
    "black": ("blank", "jpg", lambda: encoded(Image.new("RGB", (64, 64)))),
    "one colour": ("blank", "jpg", lambda: encoded(Image.new("RGB", (64, 64), "orange"))),
    "cut short": ("truncated", "jpg", lambda: encoded(scene(1))[:-3000]),
    "empty": ("unreadable", "jpg", lambda: b""),
    "a pointer": ("unreadable", "jpg", lambda: b"version https://git-lfs.github.com/spec/v1\n"),
    "12 bits": ("blank", "png", of_12_bits),
}


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        *((fault, ()) for fault in UNUSABLE),
        *((f, ("--model", "encoder")) for f in ("empty", "black")),
    ],
)
def test_a_folder_without_a_usable_image_has_the_findings_of_one_with(
    vit: Vit, tmp_path: Path, fault: str, options: tuple[str, ...]
) -> None:
    (kind, suffix, make), counts = UNUSABLE[fault], []
    saved(Path("encoder"), None)
    for name in ("a", "b"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        (tmp_path / "folder" / name / f"1.{suffix}").write_bytes(make())
    for _ in range(2):
        done = vit("data", "check", "folder", "--json", "--num-workers=0", *options)
        assert done.status == 0, done.err
        counts.append({row["kind"]: row["count"] for row in json.loads(done.out)["findings"]})
        (tmp_path / "folder" / "a" / "good.jpg").write_bytes(encoded(scene(2)))
    assert counts[0] == counts[1] and counts[0][kind] >= 1


def test_a_clean_folder_has_no_findings(vit: Vit, tmp_path: Path) -> None:
    for number in range(42):
        place = tmp_path / "clean" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((64, 64), Image.Resampling.NEAREST).save(place)
    done = vit("data", "check", "clean", *CHECKED)
    assert done.out.startswith("nothing was found\n") and done.status == 0, done.err
    assert "Nothing was found." in Path("data_check/findings.html").read_text()


def test_labels_of_a_tree_are_those_of_the_corrected_list(vit: Vit, photos: Path) -> None:
    (photos / "warm").mkdir()
    (photos / "red").rename(photos / "warm" / "red")
    done = vit("data", "check", photos, "--labels", "tree", "--fix", "tree.csv", *CHECKED)
    assert done.status == 0, done.err
    assert {row.split(",")[1] for row in Path("tree.csv").read_text().splitlines()[1:]} == {
        "blue", "grün", "warm/red",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("check", "several", "--fix", "new.csv"), "cannot list the class 'x|y': | separates"),
        (
            ("check", "blank", "--fix", "new.csv"),
            "cannot list the class ' ant': | separates labels",
        ),
        ((), "the following arguments are required: command; see `vit data --help`"),
        (("check",), "required: FOLDER|CSV; see `vit data check --help`"),
        (("check", "my photo"), "does not exist; did you mean 'my photos'?"),
        (("check", "empty"), "no images in"),
        (("check", "one"), "has one class only, 'red'"),
        (("check", "my photos", "--fix", "new.txt"), "--fix new.txt: the name must end in .csv"),
        (("check", "my photos", "--relabel", "0.9"), "--relabel changes labels in the manifest of"),
        (("check", "list.csv", "--fix", "./list.csv"), "list.csv is the list that is checked"),
        (("check", "my photos", "--model", "nothing/here"), "nothing/here"),
    ],
)
def test_mistakes_are_one_line(
    vit: Vit, photos: Path, options: tuple[str, ...], message: str
) -> None:
    Path("empty").mkdir()
    Path("list.csv").write_text("path,label\n")
    shutil.copytree(photos / "red", "one/red")
    for name in ("several/x|y", "several/z", "blank/ ant", "blank/ant"):
        shutil.copytree(photos / "red", name)
    done = vit("data", *options)
    assert (done.status, done.err.count("\n")) == (2, 1), done.err
    assert message in done.err


def test_a_disk_that_is_full_is_no_mistake_of_the_user(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "shard")

    monkeypatch.setattr(pack, "_write", full)
    for most in (99, 9):  # in this process, and in workers
        monkeypatch.setattr(pack, "MOST_IMAGES", most)
        done = vit("data", "pack", photos, f"shards{most}")
        assert (done.status, done.err.count("\n")) == (1, 1), done.err
        assert "No space left on device" in done.err and "shard" in done.err


def test_photos_are_packed_and_the_last_line_says_what_is_next(vit: Vit, photos: Path) -> None:
    done = vit("data", "pack", photos, "shards", "--resize", "16")
    assert done.status == 0, done.err
    assert done.out == "36 images, shards: 1\nnext: vit fit --data shards\n"
    shards, files = ImageData(root="shards"), ImageData(root=str(photos))
    assert shards.digests == files.digests
    again = vit("data", "pack", photos, "shards")
    assert again.status == 2 and again.err.count("\n") == 1 and "another --resize" in again.err
    assert vit("data", "pack", photos, "shards", "--resize", "0").status == 2
    options = ("--data.shuffle=blocks", "--data.sampling.balanced=true")
    mixed = vit("fit", "-c", "quickstart", "--data", "shards", *options)
    assert mixed.status == 2 and "data.sampling.balanced exclude each other" in mixed.err


def test_a_class_name_is_no_formula_for_a_spreadsheet(vit: Vit, photos: Path) -> None:
    (photos / "red").rename(photos / "=1+\x1b1")
    command = ("data", "check", photos, "--out", "out", *CHECKED)
    for option, mark in (((), ""), (("--spreadsheet",), "'")):
        done = vit(*command, *option)
        assert done.status == 0 and "=1+\\x1b1" in done.out and "\x1b" not in done.out + done.err
        rows = csv.DictReader(Path("out/findings.csv").open(newline=""))
        assert f"{mark}=1+\x1b1" in {row["image"] for row in rows if row["finding"] == "few"}
