"""The parity benchmark runs, and its page shows the measurements."""

from dataclasses import replace

import pytest

from benchmarks.parity import parity

pytest.importorskip("timm")


def test_small_models_agree_to_one_in_a_hundred_thousand() -> None:
    case = next(c for c in parity.CASES if c.library == "timm" and c.model in parity.QUICK)
    rows = parity.measure(replace(case, sizes=case.sizes[:1]))
    assert [tuple(row["image_size"]) for row in rows] == [(224, 224)]
    assert rows[0]["float32_relative"] < 1e-5 and rows[0]["float64_relative"] < 1e-9
    document = {"date": "2000-01-01", "versions": {"torch": "1"}, "rows": rows}
    text = parity.text(document)
    assert f"| {case.library} | {case.model} | 224x224 |" in text
