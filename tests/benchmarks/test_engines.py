"""benchmarks/speed/engines.py at the smallest size, and its table on a page."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.speed import engines, page
from vit import ViTConfig

TINY = ViTConfig(
    image_size=16, patch_size=8, num_classes=5, width=16, depth=2, mlp_dim=32, num_heads=2,
    activation="gelu", layer_scale=1e-5,
)  # fmt: skip


def test_engines_have_rows_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("openvino")
    for name in ("onnxruntime", "nncf"):  # as without them
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(engines, "configuration", lambda name: TINY)
    monkeypatch.setattr(engines, "SHORTEST", 0.0)
    monkeypatch.setattr(engines, "has_bfloat16", lambda: True)
    monkeypatch.setattr(engines, "compiled", lambda model: model)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    file = tmp_path / "some.json"
    every = engines.Network.arms
    for model, budget in (("slow", "0"), ("tiny", "900")):  # rows of the first model stay
        few = {"slow": [("PyTorch", "float32"), ("timm", "float32")]}.get(model)

        def arms(network: Any, few: Any = few) -> dict[Any, Any]:
            found = every(network)
            return {arm: found[arm] for arm in few or found}

        monkeypatch.setattr(engines.Network, "arms", arms)
        arguments = ["--models", model, "--batch-sizes", "2", "--rounds", "2", "--budget", budget]
        monkeypatch.setattr(sys, "argv", ["engines.py", *arguments, "--results", str(file)])
        engines.main()
    content = json.loads(file.read_text())
    rows = {(r["model"], r["engine"], r["precision"]): r for r in content["rows"]}
    assert len(rows) == len(content["rows"]) == 2 + 10
    assert all("rounds take about" in r["not_run"] for key, r in rows.items() if key[0] == "slow")
    for engine, precision in (("ONNX Runtime", "int8"), ("OpenVINO", "int8")):
        assert rows["tiny", engine, precision]["not_run"].split(":")[0].endswith("is not installed")
    for arm in (("timm", "float32"), ("OpenVINO", "float32"), ("PyTorch", "bfloat16")):
        row = rows["tiny", *arm]
        assert row["seconds"] > 0 and row["over_float32"]["ratio"] > 0
        assert row["difference"] < (1e-5 if arm[1] == "float32" else 0.1)
    text = "\n".join(page.engines(content))
    assert "| tiny | 2 | OpenVINO | int8 | not run: nncf is not installed: pip" in text
    assert f"| tiny | 2 | PyTorch | float32 | {1e3 * base(rows)['seconds']:.1f} |" in text


def base(rows: dict[Any, Any]) -> Any:
    """Ours, eager."""
    return rows["tiny", "PyTorch", "float32"]
