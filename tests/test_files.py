"""Only regular files are opened, files appear whole, and a lock ends with its process."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vit.errors import UserError
from vit.locking import FileLock, Locked
from vit.reading import irregular, regular_file, special
from vit.writing import atomic, write_json

HOLDER = """
import sys, time
from pathlib import Path
from vit.locking import FileLock
with FileLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


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


def test_a_lock_names_its_owner_and_ends_with_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(Locked, match=f"process {holder.pid} on "):
            FileLock(path).acquire()
        holder.send_signal(signal.SIGKILL)
    with FileLock(path, wait_seconds=10):
        with pytest.raises(Locked, match=f"process {os.getpid()} on "):
            FileLock(path).acquire()
    with FileLock(path):
        pass


def test_special_files_are_those_that_open_would_not_refuse(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert special(tmp_path / "pipe") == "a named pipe"
    assert special("/dev/zero") == "a device"
    for path in (tmp_path, tmp_path / "missing", "null\0character", __file__):
        assert special(path) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a\nb", r"a\nb"), ("\x1b[31m", r"\x1b[31m"), ("\udce9", r"\udce9"), ("\u202e", r"\u202e")],
)
def test_a_mistake_stays_one_line_whatever_its_value(value: str, shown: str) -> None:
    assert str(UserError(f"no folder {value}")) == f"no folder {shown}"
    assert str(UserError("Grün 日本 'x'")) == "Grün 日本 'x'"
    assert str(pickle.loads(pickle.dumps(UserError(value)))) == shown
