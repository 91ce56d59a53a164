"""Shares, durations and commands as a page writes them."""

from pathlib import Path

import pytest

from vit.extensions.reports.wording import commands, duration, percent


@pytest.mark.parametrize(
    ("share", "num_images", "words"),
    [(0.975, 360, "97.5"), (1, 0, "100.0"), (0.97654, 10_000, "97.65"), (0.97654, 9_999, "97.7")],
)
def test_percent_has_the_decimals_that_the_images_carry(share, num_images, words):
    assert percent(share, num_images) == f"{words}\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.42, "0.4 s"), (59.6, "1 min 00 s"), (83.4, "1 min 23 s"), (3725, "1 h 02 min 05 s")],
)
def test_durations_start_with_the_largest_unit(seconds, words):
    assert duration(seconds) == words


def test_commands_quote_the_run_and_stay_short_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [line for _, line in commands(Path("runs") / "my photos")]
    assert lines[0] == "vit classify 'runs/my photos' photo.jpg"
    assert "vit.load('runs/my photos')" in lines[1]
    assert lines[2] == "vit test 'runs/my photos'"
    assert commands(tmp_path.parent / "x")[2][1] == f"vit test {tmp_path.parent / 'x'}"
