"""The parity benchmark runs, and its page shows what was measured."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("timm")


def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "parity.py"
    spec = importlib.util.spec_from_file_location("parity", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("library", ["timm", "NumPy (.npz)"])
def test_small_models_agree_to_one_in_a_hundred_thousand(library: str) -> None:
    parity = benchmark()
    case = next(c for c in parity.CASES if c.library == library and c.model in parity.QUICK)
    rows = parity.measure(replace(case, sizes=case.sizes[:1]))
    assert [tuple(row["image_size"]) for row in rows] == [(224, 224)]
    assert rows[0]["float32_relative"] < 1e-5 and rows[0]["float64_relative"] < 1e-9
    document = {"date": "2000-01-01", "versions": {"torch": "1"}, "rows": rows}
    text = parity.page(document)
    assert f"| {case.library} | {case.model} | 224x224 |" in text
