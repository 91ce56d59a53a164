"""The function that `vit serve` is held against, and figures of servers that take turns."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.requests import Request

import vit
from benchmarks.speed import serve_checks, serve_page
from benchmarks.speed.serve import Turn, row
from benchmarks.speed.serve_peer import application
from tests.command import coloured
from vit.inference.classifier import load


def test_the_plain_function_computes_what_the_package_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = vit.create_model("vit_ti16", num_classes=7, depth=1)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    names = [f"class {number}" for number in range(7)]
    vit.save(model, tmp_path / "model", names, interpolation="bicubic")
    coloured(tmp_path / "photos")
    photo = sorted((tmp_path / "photos").rglob("*.jpg"))[0].read_bytes()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": photo}

    [route] = application(str(tmp_path / "model")).routes
    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    answer = asyncio.run(vars(route)["endpoint"](request))
    [row] = json.loads(answer.body)
    wanted = load(tmp_path / "model").predict(photo)[0].row("picture")
    assert [top["class"] for top in row["top"]] == [top["class"] for top in wanted["top"]]
    assert serve_checks.difference(row["top"], wanted["top"]) < 1e-5


def test_figures_are_of_all_turns_and_ratios_of_each_round() -> None:
    turns = [Turn([100.0] * 20, 2.0, 0.05, 1.0), Turn([300.0] * 10, 4.0, 0.07, 2.0)]
    base = [Turn([1.0] * 5, 2.0, 0.1, 0.0), Turn([1.0] * 20, 4.0, 0.1, 0.0)]
    result = row(turns, base)
    assert (result["requests"], result["rounds"], result["p50_ms"]) == (30, 2, 100.0)
    # 20 in 2 s against 5, then 10 in 4 s against 20.
    assert (result["ratio"], result["ratio_min"], result["ratio_max"]) == (2.25, 0.5, 4.0)
    assert result["per_second"] == pytest.approx(1 / ((0.1 + 0.4) / 2))
    assert result["cpu_ms"] == pytest.approx(60.0) and result["others"] == 1.5


def test_a_row_that_differs_in_one_digit_is_not_identical() -> None:
    one, other = ([{"class": "a", "probability": text}] for text in ("0.5", "0.50001"))
    assert serve_checks.difference(one, other) == pytest.approx(1e-5)


def test_a_client_that_is_cut_off_is_told_from_one_that_is_refused() -> None:
    met = {"200": 30, "refused": 1, "IncompleteRead: cut": 1}
    rows = [{"server": "some", "after": met, "status": 143}]
    assert "| some | 30 | 1 | 1 | 143 |" in serve_page.end(rows)
