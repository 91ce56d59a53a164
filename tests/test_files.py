"""Files appear whole, and mistakes stay one line."""

import errno
import pickle
from pathlib import Path

import pytest

from tests.command import coloured, saved
from tests.killing import with_small_files
from vit.errors import UserError
from vit.writing import atomic, write_json


def test_a_failed_write_leaves_the_file_of_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    assert path.read_text() == '{\n "a": 1\n}\n'


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a\nb", r"a\nb"), ("\x1b[31m", r"\x1b[31m"), ("\udce9", r"\udce9"), ("\u202e", r"\u202e")],
)
def test_a_mistake_stays_one_line_whatever_its_value(value: str, shown: str) -> None:
    assert str(UserError(f"no folder {value}")) == f"no folder {shown}"
    assert str(UserError("Grün 日本 'x'")) == "Grün 日本 'x'"
    assert str(pickle.loads(pickle.dumps(UserError(value)))) == shown


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("classify MODEL PHOTOS --out out/x.csv --top 3 --batch-size 64", "out/x.csv"),
        ("data check PHOTOS --out out --num-workers 0", "out/findings.csv"),
        ("data pack PHOTOS out", "out/images-00000.tar"),
    ],
)
def test_a_file_that_may_not_grow_is_named(
    command: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"MODEL": saved(tmp_path / "model"), "PHOTOS": coloured(tmp_path / "photos")}
    words = [str(places.get(word, word)) for word in command.split()]
    monkeypatch.chdir(tmp_path)
    status, line = with_small_files(1500, *words)
    assert status == 1 and "File too large" in line and file in line, line


def test_an_error_of_the_system_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(OSError) as error, atomic(path):
        raise OSError(errno.EFBIG, "File too large")
    assert error.value.filename == str(path) and error.value.errno == errno.EFBIG
    with pytest.raises(OSError) as error, atomic(path):
        raise OSError(errno.ENOENT, "No such file", "other")
    assert error.value.filename == "other" and not any(tmp_path.iterdir())
