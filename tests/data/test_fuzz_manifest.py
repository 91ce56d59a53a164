"""Random CSV files: one line, or splits as an independent reader has."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vit.data.find import find_splits
from vit.data.settings import Reading, Splitting
from vit.data.sources import SPLIT_NAMES, Splits
from vit.errors import UserError

IMAGES = [f"{folder}/{name}" for folder in ("a", "ü b") for name in ("1.jpg", "2.png", "x;y.jpg")]

PATHS = st.one_of(
    st.sampled_from(IMAGES),
    st.sampled_from(IMAGES).map(lambda path: f"./{path}"),
    st.sampled_from(IMAGES).map(lambda path: f"a/../{path}"),
    st.sampled_from(IMAGES).map(lambda path: f"{{root}}/{path}"),
    st.sampled_from(["pipe.jpg", "a", "gone.jpg", "../up.jpg", "", " ", "/dev/null", "a\0b.jpg"]),
    st.text(max_size=8),
)
LABELS = st.one_of(
    st.sampled_from(["cat", "dog", "cat", "dog", "hen"]),
    st.sampled_from(["1", "01", "1.0", "nan", "", " ", "NaN", "-0", "1e999", "=1+1", "\x1b[31m"]),
    st.sampled_from(["cat|dog", "cat;dog", "cat,dog", "|", "a||b", "cat|cat", "e\u0301", "\xe9"]),
    st.sampled_from(["x" * 300, "y" * 140_000, "line\nbreak", 'say "so"', "Cat "]),
    st.text(max_size=6),
)
SPLIT_CELLS = st.sampled_from([*["train"] * 6, "val", "Test", " valid ", "validation", "", "trian"])
HEADERS = st.sampled_from(
    [
        *[("path", "label", "split"), ("path", "label")] * 6,
        ("Path", " LABEL ", "extra", "split"),
        ("label", "path", "label"),
        ("path", "lable"),
        ("file\nname", "label"),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """A header, and rows of about as many cells."""
    header = draw(HEADERS)
    kinds: dict[str, Any] = {"path": PATHS, "label": LABELS, "split": SPLIT_CELLS}
    columns = [kinds.get(name.strip().lower(), st.text(max_size=4)) for name in header]
    if draw(st.booleans()):  # a table that may well be right
        rows = []
        for path in draw(st.permutations(IMAGES))[: draw(st.integers(0, 6))]:
            label = draw(st.sampled_from(["cat", "dog", "cat|dog", "e\u0301"]))
            cells = {"path": path, "label": label, "split": "train"}
            rows.append([cells.get(name.strip().lower(), "") for name in header])
    else:
        rows = draw(st.lists(st.tuples(*columns).map(list), max_size=7))
    for row in rows:
        if draw(st.integers(0, 30)) == 0:
            row.pop()
        elif draw(st.integers(0, 30)) == 0:
            row.append("more")
    return [list(header), *rows]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A table as bytes, in some dialect and encoding, sometimes damaged."""
    out = io.StringIO()
    csv.writer(
        out,
        delimiter=draw(st.sampled_from(",,,;\t|")),
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        lineterminator=draw(st.sampled_from(["\n", "\r\n", "\r"])),
    ).writerows(draw(tables()))
    text = draw(st.sampled_from(["", "", "\n", "\ufeff"])) + out.getvalue()
    encoding = draw(st.sampled_from([*["utf-8"] * 5, "utf-16", "latin-1"]))
    data = text.encode(encoding, "replace" if encoding == "latin-1" else "surrogatepass")
    at = draw(st.integers(0, len(data)))
    return draw(st.sampled_from([*[data] * 5, data[:at], data[:at] + b'"' + data[at:]]))


def independent(data: bytes, root: Path) -> list[tuple[str, set[str], str]]:
    """(absolute path, labels, split) of each row, by another reading of the same rules."""
    text = data.decode("utf-8-sig")
    first = io.StringIO(text, newline="").readline()
    counts = {mark: first.count(mark) for mark in ",;\t"}
    delimiter = max(counts, key=lambda mark: counts[mark])
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    table = [row for row in rows if "".join(row).strip()]
    names = [name.strip().lower() for name in table[0]]
    result = []
    for row in table[1:]:
        assert not "".join(row[len(names) :]).strip()
        cells: dict[str, list[str]] = {}
        for name, cell in zip(names, row, strict=False):
            cells.setdefault(name, []).append(cell.strip())
        labels = {part.strip() for cell in cells["label"] for part in cell.split("|")} - {""}
        split = SPLIT_NAMES[cells.get("split", ["train"])[0].lower()]
        result.append((os.path.normpath(root / cells["path"][0]), labels, split))
    return result


def listed(splits: Splits) -> Iterator[tuple[str, set[str], str]]:
    """The same of the splits that were loaded."""
    for split in ("train", "val", "test"):
        images = splits.get(split)
        for path, label in zip(images.items, images.labels, strict=True) if images else ():
            numbers = label.nonzero()[0] if splits.multilabel else [label]
            yield os.path.normpath(path), {splits.classes[i] for i in numbers}, split


def check_line(error: UserError) -> None:
    text = str(error)
    assert len(text.splitlines()) == 1 and text.isprintable(), ascii(text)
    assert len(text) < 2500


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files that need not be decoded, and a pipe."""
    for path in IMAGES:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    os.mkfifo(tmp_path / "pipe.jpg")
    return tmp_path


@settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=files())
def test_a_random_csv_is_one_line_or_what_an_independent_reader_sees(
    root: Path, data: bytes
) -> None:
    data = data.replace(b"{root}", os.fsencode(root))
    (root / "list.csv").write_bytes(data)
    file = str(root / "list.csv")
    try:
        splits = find_splits(
            None, file, Reading(cut=Splitting(val_fraction=0.0, test_fraction=0.0))
        )
    except UserError as error:
        check_line(error)
        return
    assert all(note.isprintable() for note in splits.notes)
    assert sorted(listed(splits), key=repr) == sorted(independent(data, root), key=repr)
    assert len(splits.classes) >= 2 and len(set(splits.classes)) == len(splits.classes)
    try:
        cut = find_splits(None, file, Reading(cut=Splitting(val_fraction=0.3, test_fraction=0.2)))
    except UserError as error:
        check_line(error)
        return
    # Cut or not, each row is in one split, under its own labels.
    rows = sorted((path, sorted(labels)) for path, labels, _ in listed(splits))
    assert sorted((path, sorted(labels)) for path, labels, _ in listed(cut)) == rows
