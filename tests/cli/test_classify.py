"""`vit classify`: pictures and folders in, names and probabilities out."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import vit as package
from tests.command import Vit, saved
from vit.data.decode import open_input
from vit.preprocessing import Preprocess
from vit.weights.native import save_native


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", list("abcdef"))


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


@pytest.mark.parametrize("lacking", [False, True], ids=["damaged", "no memory"])
def test_a_picture_that_cannot_be_opened_is_named_or_skipped(
    lacking: bool, vit: Vit, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(source: str, channels: int | None = None) -> Any:
        if source.endswith("03.jpg"):
            raise MemoryError
        return open_input(source, channels)

    if lacking:
        monkeypatch.setattr("vit.inference.classifier.open_input", opened)
    else:
        (photos / "red" / "03.jpg").write_bytes(b"<html>")
    done = vit("classify", model, photos / "red")
    assert done.status == 2 and "03.jpg: " in done.err and "--on-error skip" in done.err
    assert ("not enough memory" in done.err) == lacking
    done = vit("classify", model, photos / "red", "--on-error", "skip", "--json")
    assert done.status == 0 and len(json.loads(done.out)) == 11
    assert "03.jpg: " in done.err and "1 of 12 pictures were skipped" in done.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_answers_before_an_unreadable_picture_are_printed(
    flags: tuple[str, ...], vit: Vit, model: Path, photos: Path
) -> None:
    good = [photos / "red" / f"{i:02}.jpg" for i in range(3)] * 14
    (photos / "broken.jpg").write_bytes(b"<html>")
    done = vit("classify", model, *good, photos / "broken.jpg", good[0], "--top", 2, *flags)
    lines = [line for line in done.err.splitlines() if "ETA" not in line]  # on a slow machine
    assert done.status == 2 and len(lines) == 1 and "broken.jpg" in lines[0]
    assert lines[0].endswith("; --on-error skip skips it")
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
    done = vit("classify", model, picture, "--on-error", "skip")
    assert "\\x1b[2J\\x07.jpg" in done.err and not {"\x1b", "\x07"} & {*done.out, *done.err}
