"""--out of `vit classify`: a file with every picture once, in parts, that goes on after a stop."""

import csv
import json
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command import Vit, photos, saved, vit
from vit.extensions.answers.answer_files import Lines, Parts
from vit.inference.classifier import load
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

__all__ = ["photos", "vit"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", list("abcdef"))


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
    expected = load(model).predict(rows[-1]["image"])[0]
    assert [rows[-1]["class"], rows[-1]["class_5"]] == [expected.classes[0], expected.classes[4]]
    parts = []
    for shard in range(5):
        args = ("--out", f"{shard}.csv", "--shard", f"{shard}/5", "--num-workers", 0)
        assert vit("classify", model, photos, *args).status == 0
        parts += rows_of(f"{shard}.csv")
    parts.sort(key=lambda row: row["image"])
    assert [row["class"] for row in parts] == [row["class"] for row in rows]
    assert [row["image"] for row in parts] == [row["image"] for row in rows]


def array(part: int, first: int, last: int, count: int) -> dict[str, str]:
    """Variables that SLURM sets in a task of a job array (sbatch's manual)."""
    values = {"ID": part, "MIN": first, "MAX": last, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"JOB_COMPLETION_INDEX": "1", "VIT_SHARDS": "3"}, "1/3"),
        (array(5, 4, 6, 3), "1/3"),
        ({"JOB_COMPLETION_INDEX": "1"} | array(5, 4, 6, 3), "set VIT_SHARDS"),
        ({"JOB_COMPLETION_INDEX": "3", "VIT_SHARDS": "3"}, "--shard auto (3/3) is not I/N"),
        (array(5, 3, 7, 3), "3 tasks from 3 to 7"),
        ({}, "'SLURM_ARRAY_TASK_ID' is not set"),
    ],
)
def test_a_task_of_a_scheduler_takes_its_part(
    variables: dict[str, str],
    part: str,
    vit: Vit,
    model: Path,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("JOB_COMPLETION_INDEX", "VIT_SHARDS", *array(0, 0, 0, 0)):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = ("classify", model, photos, "--num-workers", 0, "--out")
    done = vit(*words, "auto.csv", "--shard", "auto")
    assert part in done.err
    if part == "1/3":
        assert vit(*words, "1.csv", "--shard", part).status == 0
        assert rows_of("auto.csv") == rows_of("1.csv")
        assert len(rows_of("1.csv")) < 36
        assert vit(*words, "all.csv").status == 0 and len(rows_of("all.csv")) == 36
    else:
        assert done.status == 2 and not Path("auto.csv").exists()


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
        shutil.copy2(before[0], added)
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


def test_other_pictures_of_the_same_names_are_not_taken_for_answered(
    vit: Vit, model: Path, photos: Path
) -> None:
    assert vit("classify", model, photos, "--out", "a.csv").status == 0
    first, second, *_ = sorted(photos.rglob("*.jpg"))
    content, times = second.read_bytes(), second.stat()
    second.write_bytes(first.read_bytes())
    again = vit("classify", model, photos, "--out", "a.csv")
    assert again.status == 2 and "was begun with pictures 36" in again.err
    second.write_bytes(content)
    os.utime(second, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = vit("classify", model, photos, "--out", "a.csv")
    assert again.status == 0 and "no picture was left" in again.err


def test_another_configuration_of_the_same_weights_is_another_model(
    vit: Vit, model: Path, photos: Path
) -> None:
    network, report = load_pretrained(model)
    assert vit("classify", model, photos, "--out", "a.csv").status == 0
    network.config = replace(network.config, activation="quick_gelu")
    facts = {"classes": report.classes, "preprocess": report.preprocess, "extra": {}}
    save_native(model, network, **facts)  # pyright: ignore[reportArgumentType]
    again = vit("classify", model, photos, "--out", "a.csv")
    assert again.status == 2 and "was begun with" in again.err


def test_a_quoted_pattern_means_what_the_shell_would_make_of_it(
    vit: Vit, model: Path, photos: Path
) -> None:
    (photos / "more/deep").mkdir(parents=True)
    for place in ("more/a.jpg", "more/deep/b.jpg"):
        shutil.copy(photos / "red/00.jpg", photos / place)
    for pattern in ("*", "**", "**/*"):
        name = f"{len(pattern)}.csv"
        assert vit("classify", model, f"{photos}/{pattern}", "--out", name).status == 0
        rows = rows_of(name)
        assert len(rows) == len({row["image"] for row in rows}) == 38
        assert not any(row["error"] for row in rows)
    (photos / "more/lost.jpg").symlink_to(photos / "nowhere.jpg")
    for name, place in (
        ("of_pattern.csv", f"{photos}/more/*"),
        ("alone.csv", photos / "more/lost.jpg"),
    ):
        assert vit("classify", model, place, "--out", name).status == 0
        assert [row["error"] != "" for row in rows_of(name)].count(True) == 1


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
