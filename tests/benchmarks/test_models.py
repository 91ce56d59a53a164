"""benchmarks/speed/models.py at the smallest size: what is compared, and by which interval."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.lib import model_peers as peers
from benchmarks.lib import model_verdicts as module
from benchmarks.speed import models
from vit import ViTConfig, create_model

pytest.importorskip("timm")
pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"image_size": 16, "patch_size": 8, "num_classes": 5, "width": 16}
SIZES |= {"depth": 2, "mlp_dim": 32, "num_heads": 2}
TINY = ViTConfig(**SIZES, activation="gelu")


def test_the_four_libraries_build_one_architecture() -> None:
    sizes = {}
    for setting in peers.settings(TINY, "cpu", "inference"):
        model = peers.BUILDERS[setting.library](TINY, setting)
        sizes[str(setting)] = sum(p.numel() for p in model.parameters())
    # Peers: defaults 3, explicit float32 2, bfloat16 3 and explicit 2. Ours: 1 per precision.
    assert len(sizes) == 12
    ours = create_model("vit_ti16", **SIZES)
    assert set(sizes.values()) == {sum(p.numel() for p in ours.parameters())}


def test_models_are_held_against_timm_and_the_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    file = tmp_path / "some.json"
    monkeypatch.setattr(models, "configuration", lambda name: TINY)
    monkeypatch.setattr(models, "SHORTEST", 0.0)
    monkeypatch.setattr(models, "FINAL_SECONDS", 0.0)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    arguments = ["--models", "tiny", "--batch-size", "2", "--rounds", "2", "--results", str(file)]
    monkeypatch.setattr(sys, "argv", ["models.py", *arguments, "--precisions", "fp32", "bf16"])
    models.main()
    content = json.loads(file.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == content
    assert len(content["finals"]) == 4  # tasks and precisions
    rows = {(r["what"], r["setting"]): r for r in content["rows"]}
    # In training the peers have fused AdamW, too.
    assert len(rows) == len(content["rows"]) == 12 + 15
    for (what, setting), row in rows.items():
        assert row["images_per_second"] > 0 and row["utilisation"] > 0
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        has_error = what == "inference" and setting.startswith(("timm", "vit"))
        assert (row["logit_error"] is not None) == has_error
        if has_error:
            assert 0 < row["logit_error"] < (0.05 if "bf16" in setting else 1e-5)


# Ranks of the interval of at least 95 %: table of the sign test.
@pytest.mark.parametrize(("n", "low", "high"), [(5, 1, 5), (6, 1, 6), (10, 2, 9), (25, 8, 18)])
def test_the_interval_of_a_median_has_ranks_of_the_sign_test(n: int, low: int, high: int) -> None:
    values = [float(i) for i in range(n, 0, -1)]
    assert module.median_interval(values) == (low, high)
