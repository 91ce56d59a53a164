"""Only regular files are opened, and files appear whole."""

import os
import pickle
from pathlib import Path

import pytest

from vit.errors import UserError
from vit.reading import irregular, regular_file, special
from vit.writing import atomic, write_json


def test_whatever_is_no_regular_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    (tmp_path / "alias").symlink_to(tmp_path / "file")
    assert irregular(tmp_path / "pipe") == irregular(tmp_path / "link") == "a named pipe"
    assert irregular(tmp_path) == "a directory"
    assert irregular("/dev/zero") == "a device"
    assert irregular(tmp_path / "none") == "missing"
    assert "not readable" in str(irregular("a\0b"))
    assert (special(tmp_path / "pipe"), special("/dev/zero")) == ("a named pipe", "a device")
    for path in (tmp_path, tmp_path / "missing", "null\0character", __file__):
        assert special(path) is None
    assert regular_file(str(tmp_path / "alias")) == tmp_path / "alias"
    with pytest.raises(UserError, match=r"/pipe is not a file of weights: it is a named pipe$"):
        regular_file(tmp_path / "pipe", "a file of weights")


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
