"""`vit classify`: pictures and folders in, names and probabilities out."""

import csv
import json
import os
import re
import shutil
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import vit as package
from tests.command import Vit, saved
from vit.data.decode import open_input
from vit.extensions.serving.answer_files import Lines, Parts
from vit.preprocessing import Preprocess
from vit.weights.native import save_native


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    net = package.create_model(
        "vit_ti16", num_classes=6, image_size=16, depth=1, width=24, mlp_dim=48, num_heads=2
    )
    torch.nn.init.normal_(net.get_parameter("head.weight"))
    steps = Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict()
    save_native(tmp_path / "model", net, classes=list("abcdef"), preprocess=steps, extra={})
    return tmp_path / "model"


def test_json_has_the_top_five_of_every_picture(vit: Vit, model: Path, photos: Path) -> None:
    done = vit("classify", model, photos / "red" / "00.jpg", photos / "blue", "--json")
    rows = json.loads(done.out)
    assert done.status == 0
    assert len(rows) == 1 + 12
    assert all(len(row["top"]) == 5 for row in rows)
    expected = package.load(model).predict(photos / "red" / "00.jpg")[0]
    assert [entry["class"] for entry in rows[0]["top"]] == expected.classes
    assert [e["probability"] for e in rows[0]["top"]] == pytest.approx(
        expected.probabilities, abs=1e-5
    )


TREE = ["a/a", "a/b/c", "a/b/d", "b", "c/a", "c/b"]


@pytest.fixture
def in_tree(tmp_path: Path) -> Path:
    return saved(tmp_path / "tree", TREE, extra={"tree": True})


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_tree_answers_with_a_node_above_the_confidence(
    suffix: str, vit: Vit, in_tree: Path, photos: Path
) -> None:
    classifier, pictures = package.load(in_tree), photos / "blue"
    whole = classifier.predict(pictures, top=6)
    # Some are answered by a class, others are not.
    confidence = statistics.median(prediction.probabilities[0] for prediction in whole)
    found = classifier.predict(pictures, confidence=confidence)
    for answer, prediction in zip(found, whole, strict=True):
        named = zip(prediction.classes, prediction.probabilities, strict=True)
        below = [
            p for n, p in named if not answer.answer or f"{n}/".startswith(f"{answer.answer}/")
        ]
        assert confidence < answer.answer_probability == pytest.approx(sum(below))
    assert len({answer.answer in TREE for answer in found}) == 2
    args = ("classify", in_tree, pictures, "--confidence", confidence)
    rows = json.loads(vit(*args, "--json").out)
    assert [row["answer"] for row in rows] == [answer.answer for answer in found]
    assert f"  answer: {found[0].answer} (" in vit(*args).out
    assert "  answer: none\n" in vit(*args[:3], "--confidence", 0.9999).out
    out = Path(f"answers.{suffix}")
    assert vit(*args, "--out", out).status == 0
    if suffix == "parquet":
        listed = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    else:
        lines = out.read_text().splitlines()
        listed = [*csv.DictReader(lines)] if suffix == "csv" else [*map(json.loads, lines)]
    assert [row["answer"] for row in listed] == [answer.answer for answer in found]
    values = [float(row["answer_probability"]) for row in listed]
    assert values == pytest.approx([answer.answer_probability for answer in found], abs=1e-5)


def test_a_confidence_needs_a_tree_and_a_share(vit: Vit, in_tree: Path, photos: Path) -> None:
    done = vit("classify", in_tree, photos, "--confidence", 80, "--out", "x.csv")
    assert done.status == 2 and "confidence=80.0 must be in [0, 1)" in done.err
    plain = saved(Path("plain"), TREE)
    done = vit("classify", plain, photos, "--confidence", 0.6)
    assert done.status == 2 and "needs a model whose classes are a tree" in done.err


def test_an_unreadable_picture_is_named_or_skipped(vit: Vit, model: Path, photos: Path) -> None:
    (photos / "red" / "00.jpg").write_bytes(b"<html>")
    done = vit("classify", model, photos / "red")
    assert done.status == 2
    assert "00.jpg" in done.err
    done = vit("classify", model, photos / "red", "--on_error", "skip", "--json")
    assert done.status == 0
    assert len(json.loads(done.out)) == 11
    assert "1 of 12 pictures were skipped" in done.err


def test_a_picture_that_no_memory_is_left_for_is_named_or_skipped(
    vit: Vit, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(source: str, channels: int | None = None) -> Any:
        if source.endswith("03.jpg"):
            raise MemoryError
        return open_input(source, channels)

    monkeypatch.setattr("vit.inference.classifier.open_input", lacking)
    done = vit("classify", model, photos / "red")
    assert done.status == 2 and "03.jpg: not enough memory to open it; --on_error" in done.err
    done = vit("classify", model, photos / "red", "--on_error", "skip", "--json")
    assert done.status == 0 and len(json.loads(done.out)) == 11
    assert "03.jpg: not enough memory to open it" in done.err


def test_an_empty_folder_is_named(vit: Vit, model: Path) -> None:
    Path("empty").mkdir()
    done = vit("classify", model, "empty")
    assert done.status == 2 and "empty" in done.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_answers_before_an_unreadable_picture_are_printed(
    flags: tuple[str, ...], vit: Vit, model: Path, photos: Path
) -> None:
    good = [photos / "red" / f"{i:02}.jpg" for i in range(3)] * 14
    (photos / "broken.jpg").write_bytes(b"<html>")
    done = vit("classify", model, *good, photos / "broken.jpg", good[0], "--top", 2, *flags)
    lines = [line for line in done.err.splitlines() if "ETA" not in line]  # on a slow machine
    assert done.status == 2 and len(lines) == 1 and "broken.jpg" in lines[0]
    assert lines[0].endswith("; --on_error skip goes on with the others")
    if flags:
        assert [row["image"] for row in json.loads(done.out)] == [str(path) for path in good]
    else:
        assert [line for line in done.out.splitlines() if "%" not in line] == list(map(str, good))


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_outputs_that_are_not_finite_are_refused(
    flags: tuple[str, ...], vit: Vit, model: Path, photos: Path
) -> None:
    net = package.load(model).model
    torch.nn.init.constant_(net.head.weight, float("nan"))  # pyright: ignore
    steps = Preprocess(image_size=(16, 16)).to_dict()
    save_native("nan", net, classes=list("abcdef"), preprocess=steps, extra={})  # pyright: ignore
    done = vit("classify", "nan", photos / "red" / "00.jpg", *flags)
    assert done.status == 2 and "nan" not in done.out.lower()
    assert done.err.count("\n") == 1 and "outputs are not finite numbers" in done.err


def rows_of(file: str) -> list[dict[str, str]]:
    if file.endswith(".parquet"):
        return pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()
    with Path(file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_file_has_every_picture_once_and_shards_add_up(
    vit: Vit, model: Path, photos: Path
) -> None:
    (photos / "blue" / "03.jpg").write_bytes(b"")
    done = vit("classify", model, photos, photos / "red" / "00.jpg", "--out", "new/x.csv")
    assert done.status == 0 and not done.out
    assert "answered: 36" in done.err and "(column error): 1;" in done.err
    assert sorted(path.name for path in Path("new").iterdir()) == ["x.csv", "x.csv.json"]
    rows = rows_of("new/x.csv")
    assert [row["image"] for row in rows] == sorted(map(str, photos.rglob("*.jpg")))
    assert [row["image"] for row in rows if row["error"]] == [str(photos / "blue" / "03.jpg")]
    expected = package.load(model).predict(rows[-1]["image"])[0]
    assert [rows[-1]["class"], rows[-1]["class_5"]] == [expected.classes[0], expected.classes[4]]
    parts = []
    for shard in range(5):
        args = ("--out", f"{shard}.csv", "--shard", f"{shard}/5", "--num-workers", 0)
        assert vit("classify", model, photos, *args).status == 0
        parts += rows_of(f"{shard}.csv")
    parts.sort(key=lambda row: row["image"])
    assert [row["class"] for row in parts] == [row["class"] for row in rows]
    assert [row["image"] for row in parts] == [row["image"] for row in rows]


def test_a_picture_that_is_added_between_two_parts_moves_no_other(
    vit: Vit, model: Path, photos: Path
) -> None:
    before, added = sorted(photos.rglob("*.jpg")), photos / "blue" / "000.jpg"
    for shard in range(3):
        done = vit("classify", model, photos, "--out", f"{shard}.csv", "--shard", f"{shard}/3")
        assert done.status == 0, done.err
        lists = re.findall(r"part ./3 of (\d+) \(digest (\w{16})\) pictures", done.err)
        assert lists[0][0] == str(36 + (shard > 0))
        about = json.loads(Path(f"{shard}.csv.json").read_text())
        assert about["pictures of all shards"] == "{} (digest {})".format(*lists[0])
        shutil.copy(before[0], added)
    answered = [row["image"] for shard in range(3) for row in rows_of(f"{shard}.csv")]
    assert sorted({*answered, str(added)}) == sorted([*map(str, before), str(added)])
    assert len(answered) == len({*answered}), "each once"
    # A part goes on if its own pictures are the same, also below another folder, else not.
    again = vit("classify", model, photos, "--out", "1.csv", "--shard", "1/3")
    assert again.status == 0 and "no picture was left" in again.err
    Path(rows_of("1.csv")[0]["image"]).unlink()
    again = vit("classify", model, photos, "--out", "1.csv", "--shard", "1/3")
    assert again.status == 2 and "was begun with pictures" in again.err
    shutil.copytree(photos, "elsewhere")
    for place, out in ((photos, "a.jsonl"), ("elsewhere", "b.jsonl")):
        assert vit("classify", model, place, "--out", out, "--shard", "2/3").status == 0
    parts = [[json.loads(line)["image"] for line in open(name)] for name in ("a.jsonl", "b.jsonl")]
    below = [os.path.relpath(image, photos) for image in parts[0]]
    assert below == [os.path.relpath(image, "elsewhere") for image in parts[1]]


@pytest.mark.parametrize(
    ("number", "out", "kind"),
    [(signal.SIGINT, "x.csv", Lines), (signal.SIGTERM, "x.parquet", Parts)],
)
def test_a_stopped_command_keeps_its_answers_and_goes_on(
    number: signal.Signals,
    out: str,
    kind: type[Lines] | type[Parts],
    vit: Vit,
    model: Path,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ("classify", model, photos, "--out", out, "--batch-size", 5, "--num-workers", 0)

    def stopping(file: Any, rows: list[Any]) -> None:
        signal.raise_signal(number)
        write(file, rows)

    write: Any = kind.add
    with monkeypatch.context() as patch:
        patch.setattr(kind, "add", stopping)
        stopped = vit(*command)
    assert stopped.status == 128 + number and "vit: stopped" in stopped.err
    assert not list(Path().glob(".*.lock"))
    before = rows_of(out)
    assert 0 < len(before) < 36
    assert "answered: 36, " not in vit(*command).err
    rows = rows_of(out)
    assert rows[: len(before)] == before
    assert [row["image"] for row in rows] == sorted(map(str, photos.rglob("*.jpg")))
    assert "no picture was left" in vit(*command).err


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("--out x.txt", ["x.txt", ".parquet"]),
        ("--out x.csv --features", ["--features", "x.parquet"]),
        ("--out x.csv --json", ["--json", "--out"]),
        ("--shard 0/2", ["--shard", "--out"]),
        ("--out x.csv --shard 2/2", ["2/2", "from 0"]),
        ("--out x.csv --shard half", ["half", "0/8"]),
        ("--out photos", ["photos", ".csv"]),
        ("--out old.csv", ["old.csv.json"]),
        ("--out begun.csv --top 2", ["top 5", "not 2"]),
        ("--out begun.csv --shard 0/2", ["pictures 12 (digest ", "), not "]),
        ("--out begun.csv --precision bfloat16", ["float32", "bfloat16"]),
        ("--out /proc/x.csv", ["--out /proc: cannot be written to"]),
        ("--out x.parquet", ["vitkit[parquet]"]),
    ],
)
def test_a_file_that_cannot_be_is_one_line(
    args: str,
    parts: list[str],
    vit: Vit,
    model: Path,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("old.csv").write_text("a,b\n")
    if "begun" in args:
        begin = (model, photos / "red", "--out", "begun.csv", "--num-workers", 0)
        assert vit("classify", *begin).status == 0
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = vit("classify", model, photos / "red", *args.split())
    assert done.status == 2 and not done.out
    [line] = [line for line in done.err.splitlines() if not line.startswith("note:")]
    assert all(part in line for part in parts), line
    assert Path("old.csv").read_text() == "a,b\n"


def test_bfloat16_names_the_same_class(vit: Vit, model: Path, photos: Path) -> None:
    args = ("classify", model, photos / "red" / "00.jpg", "--top", 1, "--json")
    [whole], [half] = (
        json.loads(vit(*args, "--precision", kind).out) for kind in ("float32", "bfloat16")
    )
    assert half["top"][0]["class"] == whole["top"][0]["class"]
    share = half["top"][0]["probability"]
    assert share == pytest.approx(whole["top"][0]["probability"], abs=0.02)
    assert share != whole["top"][0]["probability"]


def test_control_characters_in_names_do_not_reach_the_terminal(
    vit: Vit, tmp_path: Path, photos: Path
) -> None:
    wild = ["\x1b]0;title\x07blue", "gr\x9bün", "red\nline"]
    model = saved(tmp_path / "wild", wild)
    picture = photos / "red/00.jpg"
    picture = picture.rename(photos / "red/\x1b[2J\x07.jpg")
    done = vit("classify", model, picture)
    assert done.status == 0 and not {"\x1b", "\x07", "\x9b"} & {*done.out, *done.err}
    assert "\\x1b[2J\\x07.jpg" in done.out and "\\x1b]0;title\\x07blue" in done.out
    assert "red\\nline" in done.out
    picture.write_bytes(b"")
    done = vit("classify", model, picture, "--on_error", "skip")
    assert "\\x1b[2J\\x07.jpg" in done.err and not {"\x1b", "\x07"} & {*done.out, *done.err}


def test_formulas_are_texts_in_a_csv_on_demand(
    vit: Vit, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "wild", ["=1+1", "@x", "-y"])
    monkeypatch.chdir(photos / "red")
    Path("00.jpg").rename("=2+2.jpg")
    for option, mark in (((), ""), (("--spreadsheet",), "'")):
        out = f"{len(option)}.csv"
        assert vit("classify", model, "=2+2.jpg", "--out", out, *option).status == 0
        [row] = csv.DictReader(Path(out).open(newline=""))
        assert row["image"] == f"{mark}=2+2.jpg"
        assert {row["class"], row["class_2"], row["class_3"]} == {
            f"{mark}{name}" for name in ("=1+1", "@x", "-y")
        }
        assert 0 < float(row["probability"]) < 1
    done = vit("classify", model, "=2+2.jpg", "--out", "0.csv", "--spreadsheet")
    assert done.status == 2 and "was begun with spreadsheet False" in done.err
    done = vit("classify", model, "=2+2.jpg", "--out", "x.jsonl", "--spreadsheet")
    assert done.status == 2 and "--spreadsheet is for a CSV: --out x.csv" in done.err
