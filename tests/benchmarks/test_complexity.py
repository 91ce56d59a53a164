"""The measured Table 1: paths, operations and chains against closed forms; resumed."""

import json
from pathlib import Path

import pytest

from benchmarks.papers.complexity import page
from benchmarks.papers.complexity import run as ours


def test_sizes_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "complexity.json"
    content = ours.main(["--quick", "--results", str(file)])
    saved = json.loads(file.read_text())
    assert saved["rows"] == content["rows"]
    assert [(row["axis"], row["tokens"]) for row in saved["rows"]] == [
        *(("tokens", 64), ("tokens", 128), ("width", 64), ("width", 64), ("vit_s16", 197))
    ]
    monkeypatch.setattr(ours, "measure", None)  # nothing is left to measure
    assert ours.main(["--quick", "--results", str(file)])["rows"] == saved["rows"]
    with pytest.raises(SystemExit, match="other settings"):
        ours.main(["--results", str(file)])


def test_paths_are_those_of_theory() -> None:
    grid = [4, 16]
    assert page.THEORY.keys() == ours.ARMS.keys()
    for arm in ("softmax", "window", "axial, alternate", "bigbird", "lstm", "synthesizer, random"):
        assert ours.path(ours.ARMS[arm], grid, 64) == page.THEORY[arm].layers(*grid), arm


def test_operations_are_those_of_theory_and_only_recurrences_wait() -> None:
    """Both passes have three products for each one of forward, of 2 operations per multiply-add."""
    n, d = 8 * 16, 64
    expected = {
        "softmax": 4 * n * d**2 + 2 * n * n * d,
        "window": 4 * n * d**2 + 2 * 16 * n * d,
        "linformer": 4 * n * d**2 + 4 * 64 * n * d,
        "rnn": (2 * 2 + 2) * n * d**2,  # both directions, and the sum of them
        "lstm": (2 * 8 + 2) * n * d**2,
        "gru": (2 * 6 + 2) * n * d**2,
        "convolution": 7 * n * d**2,
        "convolution, depthwise": 7 * n * d + n * d**2,
        "synthesizer, random": 2 * n * d**2 + n * n * d,
    }
    for arm, count in expected.items():
        counted = ours.operations(ours.ARMS[arm], [8, 16], d, 0)
        # the first step of a recurrence has no gradient of its state
        assert counted == pytest.approx(6 * count, rel=0.01), arm
    for arm, part in ours.ARMS.items():
        waits = arm in ("rnn", "lstm", "gru")
        grids = ([4, 8], [8, 8]) if waits else ([8, 8], [8, 16])
        short, long = (ours.chain(part, grid, 64) for grid in grids)
        if waits:
            assert long - short == pytest.approx(short, rel=0.1), arm
        else:
            assert long == short, arm
