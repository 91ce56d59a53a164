"""The experiment on modifications: every arm, continued where it was, at equal cost."""

import json
from pathlib import Path

import pytest

from benchmarks.papers.modifications import page
from benchmarks.papers.modifications import run as ours
from vit.extensions.variants.table import CHANGES


def test_arms_are_trained_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "modifications.json"
    content = ours.main(["--quick", "--results", str(file)])
    assert [row["arm"] for row in content["rows"]] == list(ours.ARMS)
    saved = json.loads(file.read_text())
    monkeypatch.setattr(ours, "train", None)  # nothing is left to train
    assert ours.main(["--quick", "--results", str(file)])["rows"] == saved["rows"]
    text = "\n".join(page.texts(saved).values())
    for arm in ours.ARMS:
        assert f"| {arm} |" in text
    used = {(kind, part["name"]) for arm in ours.ARMS.values() for kind, part in arm.parts.items()}
    shown = {(kind, name) for kind in CHANGES for name in CHANGES[kind] if kind != "mixer"}
    assert shown - used == {("mlp", "relu")}  # which all others have
    lines = [line.split("|") for line in page.PAGE.read_text(encoding="utf-8").splitlines()]
    described = {(line[1].strip(" `"), line[2]) for line in lines if len(line) == 7}
    for kind, name in shown:
        assert any(kind == other and f"`{name}`" in names for other, names in described)
    assert page.PAPER.keys() <= {*ours.PLAIN_ARMS, *ours.MIXED}


def test_shapes_have_the_parameters_and_gates_the_operations_of_the_baseline() -> None:
    shaped = [arm for arm, value in ours.ARMS.items() if value.layers != 1]
    for setting in (ours.SETTING, ours.LARGE):
        plain, *shapes = (ours.config_of(setting, arm) for arm in (ours.BASELINE, *shaped))
        # Those of the paper's 24/1536/6, 18/2048/8, 8/4608/18 and 6/6144/24 over its 12/3072/12.
        ratios = [(2, 1 / 2, 1 / 2), (1.5, 2 / 3, 2 / 3), (2 / 3, 1.5, 1.5), (1 / 2, 2, 2)]
        assert [
            (c.depth / plain.depth, c.mlp_dim / plain.mlp_dim, c.num_heads / plain.num_heads)
            for c in shapes
        ] == [pytest.approx(ratio) for ratio in ratios]
    cost = ours.work(ours.config_of(ours.SETTING, ours.BASELINE))
    for arm in (*shaped, "GEGLU", "RMSNorm", "ReZero"):
        found = ours.work(ours.config_of(ours.SETTING, arm))
        assert found.flops == cost.flops
        assert found.params == pytest.approx(cost.params, rel=0.02)
    for arm in ("window attention", "axial attention", "BigBird", "Linformer"):
        assert ours.work(ours.config_of(ours.SETTING, arm)).flops < cost.flops
