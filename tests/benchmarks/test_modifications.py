"""The experiment on modifications: every arm, continued where it was; verdicts and orders."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.papers.modifications import page
from benchmarks.papers.modifications import run as ours
from vit.extensions.variants.table import CHANGES


def test_every_arm_is_trained_once_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def contents(losses: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "rows": [
            {"data": "cifar10", "arm": arm, "seed": seed, "loss": loss, "early_loss": -loss}
            for arm, values in losses.items()
            for seed, loss in enumerate(values)
        ]
    }


def test_a_verdict_is_by_twice_the_deviation_of_the_baseline() -> None:
    given = {"ReLU": [1.0, 1.1, 1.2], "GELU": [1.31], "Swish": [1.29, 1.29], "GLU": [0.5, 1.0]}
    losses = page.Losses(page.Rows(contents(given)), "cifar10")
    assert losses.twice == pytest.approx(0.2) and losses.seeds == 3
    found = {arm: losses.sign([arm]) for arm in ("GELU", "Swish", "GLU", "ELU")}
    assert found == {"GELU": 1, "Swish": 0, "GLU": -1, "ELU": None}
    text = page.claims(page.Losses(page.Rows(contents(given | {"GELU": [1.25]})), "cifar10"))
    assert "| GELU and Swish are as good as ReLU | within noise | seen |" in text
    assert "| gates are better | not finished | not finished |" in text
    # Opposite rows do not cancel where the paper sees little difference.
    given |= {"GELU": [1.31], "Swish": [0.89]}
    text = page.claims(page.Losses(page.Rows(contents(given)), "cifar10"))
    assert "| GELU and Swish are as good as ReLU | better, worse | not seen |" in text
    one = page.Losses(page.Rows(contents({"ReLU": [1.0], "GELU": [9.0]})), "cifar10")
    assert one.sign(["GELU"]) == 0  # of one seed, nothing is known


def test_orders_of_losses_are_compared_by_rank() -> None:
    arms = list(page.PAPER)[:10]
    ours = dict(zip(arms, torch.rand(10).tolist(), strict=True))
    rows = page.Rows(contents({arm: [loss] for arm, loss in ours.items()}))
    text = page.agreement(rows, page.Losses(rows, "cifar10"), "cifar10")
    ranks = [sorted(values).index for values in (list(ours.values()), [])]
    mine = [ranks[0](ours[arm]) for arm in arms]
    final = [page.PAPER[arm][1] for arm in arms]
    theirs = [sum(x < y for x in final) + (final.count(y) - 1) / 2 for y in final]
    rho = torch.corrcoef(torch.tensor([mine, theirs]).double())[0, 1].item()
    assert f"the paper's {rho:.2f} (" in text and "over the 10 rows" in text
    low, high = page.interval(0.5, 28)
    assert math.atanh(high) - math.atanh(low) == pytest.approx(2 * 1.96 * (1.125 / 25) ** 0.5)
