"""vit.BatchClassifier: rows of files' bytes, alone and in Ray's actors."""

import os
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

import vit
from tests.command import Vit, saved
from tests.extensions.answers.test_answer_out import rows_of
from vit.errors import UserError


def batch_of(paths: list[Path]) -> dict[str, np.ndarray]:
    """Columns as Ray gives them."""
    contents = [path.read_bytes() for path in paths]
    return {
        "path": np.array([str(path) for path in paths], object),
        "bytes": np.array(contents, object),
    }


def compare(rows: list[dict[str, Any]], written: list[dict[str, str]]) -> None:
    """Asserts that rows have the answers of a CSV of `vit classify`, and digests of their files."""
    assert sorted(row["image"] for row in rows) == [row["image"] for row in written]
    for row, other in zip(sorted(rows, key=lambda row: row["image"]), written, strict=True):
        assert row["digest"] == sha256(Path(row["image"]).read_bytes()).hexdigest()
        assert {*row} == {*other, "digest"}
        for name, text in other.items():
            if "probability" in name and text:
                assert abs(row[name] - float(text)) <= 1e-5
            else:
                assert (row[name] or "") == text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", list("abcdef"))


@pytest.fixture
def written(vit: Vit, model: Path, photos: Path) -> list[dict[str, str]]:
    """Rows of `vit classify` for the photos, one of which is damaged."""
    (photos / "red" / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    done = vit("classify", model, photos, "--out", "all.csv", "--num-workers", 0)
    assert done.status == 0, done.err
    return rows_of("all.csv")


def test_rows_are_those_of_the_command(
    written: list[dict[str, str]], model: Path, photos: Path
) -> None:
    classify = vit.BatchClassifier(model)
    paths = sorted(photos.rglob("*.jpg"))
    rows = [
        row for i in range(0, 37, 8) for row in classify(batch_of(paths[i : i + 8])).to_pylist()
    ]
    compare(rows, written)
    assert sum(row["error"] is not None for row in rows) == 1
    empty = classify({"path": ["none"], "bytes": [None]}).to_pylist()[0]
    assert empty["class"] is None and "empty" in empty["error"]


def test_tables_of_any_batch_have_the_same_types(model: Path, photos: Path) -> None:
    classify = vit.BatchClassifier(model, top=2, features=True)
    good = classify(batch_of(sorted(photos.rglob("*.jpg"))[:2]))
    bad = classify({"path": ["a"], "bytes": [b"x"]})
    assert good.schema == bad.schema
    assert good.column("features").to_pylist()[0] == pytest.approx(
        vit.load(model).features(str(sorted(photos.rglob("*.jpg"))[0]))[0].tolist(), abs=1e-5
    )


def test_other_columns_are_refused(model: Path) -> None:
    with pytest.raises(UserError, match=r"columns \['image', 'path'\], and not \['bytes'\]"):
        vit.BatchClassifier(model)({"path": ["a"], "image": [b""]})
    image = {"bytes": b"", "path": None}  # as datasets has them
    with pytest.raises(UserError, match="a cell of the column bytes is dict"):
        vit.BatchClassifier(model)({"path": ["a"], "bytes": [image]})


class KilledOnce(vit.BatchClassifier):
    """An actor that a signal kills in the middle of its first batch; those after it live."""

    def __init__(self, model: Path, marker: Path) -> None:
        super().__init__(model)
        self.marker = marker

    def __call__(self, batch: Any) -> Any:
        table = super().__call__(batch)
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return table
        os.kill(os.getpid(), signal.SIGKILL)
        return None


@pytest.mark.slow
def test_each_file_has_one_row_though_an_actor_is_killed(
    written: list[dict[str, str]], model: Path, photos: Path, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        files = ray.data.read_binary_files(str(photos), include_paths=True)
        answers = files.repartition(6).map_batches(
            KilledOnce,
            fn_constructor_args=[model.absolute(), tmp_path / "killed"],
            batch_size=4,
            concurrency=2,
        )
        answers.write_parquet(str(tmp_path / "answers"))
        # Parquet in: the files' bytes as a table.
        files.write_parquet(str(tmp_path / "files"))
        table = ray.data.read_parquet(str(tmp_path / "files"))
        again = table.map_batches(
            vit.BatchClassifier, fn_constructor_args=[model.absolute()], concurrency=1
        ).take_all()
    finally:
        ray.shutdown()
    assert (tmp_path / "killed").exists()
    compare(parquet.read_table(tmp_path / "answers").to_pylist(), written)
    compare(again, written)
