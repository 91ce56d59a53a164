"""The first process speaks. A terminal gets a bar with a rate, a log file a line per tenth."""

import pytest

from vit import console
from vit.console import Meter, note, say


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PATIENCE", -1.0)


def test_a_log_file_gets_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("features of test", 95, "img") as meter:
        for _ in range(19):
            meter.advance(5)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[3] for line in lines][-1] == "100%" and len(lines) == 10
    assert all(line.startswith("features of test") for line in lines)
    assert all("img/s" in line and "ETA" in line for line in lines)


def test_short_work_passes_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PATIENCE", 60.0)
    with Meter("features of test", 4, "img") as meter:
        meter.advance(4)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


@pytest.mark.parametrize(("total", "shown"), [(1234, "100%"), (0, "1,234 img")])
def test_a_terminal_gets_a_bar_with_rate_and_time_left(
    total: int, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("COLUMNS", "100")
        with Meter("features of test", total, "img") as meter:
            meter.advance(1234)
        out, err = capsys.readouterr()
        assert out == "" and bool(err) == (terminal or total > 0)  # of unknown length: a bar alone
    assert "features of test" in err and shown in err and "img/s" in err
    assert "0:00:00" in err or not total


def test_work_that_changes_its_name_keeps_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("first", 2, "turns") as meter:
        meter.advance()
        meter.show("second")
        meter.advance()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("first   50%") and second.startswith("second  100%")


def test_work_that_was_begun_before_has_the_rate_of_what_is_new(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 2.0))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with Meter("w.bin", 0, "MB") as meter:
        meter.begin(60, 100)
        meter.advance(20)
    assert capsys.readouterr().err == "w.bin   80%  10 MB/s  ETA 0:02\n"


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK"])
def test_of_several_processes_the_first_speaks(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in ("0", "1"):
        monkeypatch.setenv(variable, number)
        note("short set")
        say("here", everywhere=True)
        with Meter("features", 1, "img") as meter:
            meter.advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["note:", "here", "features", "here"]
    assert lines[0] == "note: short set"
