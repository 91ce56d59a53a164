"""benchmarks/compiling.py: what it computes from its two processes, and a process itself."""

import json
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vit.errors import UserError
from vit.training.compiling import prepare_compiling


def test_compiling_pays_when_what_it_saves_is_more_than_it_takes(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_benchmark("compiling")
    parts = [
        {"seconds": 30.0, "wall": 60.0},
        {"seconds": 3.0, "wall": 6.0, "eager": 0.5, "compiled": 0.2, "ratio": 2.5},
    ]
    folders = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> SimpleNamespace:
        folders.append(env["TORCHINDUCTOR_CACHE_DIR"])
        # Steps are measured in the second process alone.
        assert command[-1] == ("0" if len(folders) == 1 else "5")
        found = json.dumps(parts[len(folders) - 1])
        return SimpleNamespace(returncode=0, stdout=f"a note\n{found}")

    monkeypatch.setattr(module.subprocess, "run", run)
    row = module.measure("tiny", "inference", 2, "compiled", 5)
    assert folders[0] == folders[1]
    assert (row["cold"], row["again"], row["wall"]) == (30, 3, [60, 6])
    assert row["pays_after"] == pytest.approx([100, 10])
    shown = module.line({**row, "ratio_min": 2.0, "ratio_max": 3.0})
    assert "x2.50 (2.00-3.00)" in shown and "after 100 / 10 images" in shown
    folders.clear()
    parts[1] |= {"eager": 0.2, "compiled": 0.5}
    slower = module.measure("tiny", "inference", 2, "compiled", 5)
    assert slower["pays_after"] == [None, None]


@pytest.mark.slow
def test_a_compiled_model_computes_what_the_eager_one_does(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    try:
        prepare_compiling("cpu")
    except UserError:
        pytest.skip("no C++ compiler")
    module = load_benchmark("compiling")
    row = module.measure("tiny", "inference", 2, "compiled", 2)
    assert row["cold"] > row["again"] and row["cache_bytes"] > 0
    errors = row["error"]
    assert 0 < errors["compiled"] < 2 * errors["eager"] < 1e-5
