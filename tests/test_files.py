"""Files appear whole, and mistakes stay one line."""

import pickle
from pathlib import Path

import pytest

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
