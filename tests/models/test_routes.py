"""The library of float32 products: chosen once per machine, the same in every process and run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vit.errors import UserError
from vit.models import matmul, routes

RACE = "from vit.models.matmul import current_float32_route as r; print(r())"


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a measurement; the file for its choice."""
    monkeypatch.setenv("VIT_CACHE", str(tmp_path))
    monkeypatch.setattr(routes, "_measured", {})
    monkeypatch.setattr(routes, "_forced", None)
    return tmp_path / "routes.json"


def race(outcome: routes.Float32Route, calls: list[str]) -> routes.Float32Route:
    calls.append(outcome)
    return outcome


def test_the_first_measurement_holds_whatever_later_ones_would_say(
    unmeasured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    assert routes.float32_route(lambda: race("onednn", calls)) == "onednn"
    monkeypatch.setattr(routes, "_measured", {})  # as in another process
    assert routes.float32_route(lambda: race("aten", calls)) == "onednn"
    assert calls == ["onednn"]
    assert list(json.loads(unmeasured.read_text()).values()) == ["onednn"]


def test_another_number_of_threads_is_measured_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    routes.float32_route(lambda: race("onednn", calls))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 61)
    assert routes.float32_route(lambda: race("aten", calls)) == "aten"
    assert calls == ["onednn", "aten"]


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}', "\0", "null"])
def test_a_damaged_record_is_measured_again(unmeasured: Path, content: str) -> None:
    unmeasured.write_text(content)
    assert routes.float32_route(lambda: "onednn") == "onednn"
    assert list(json.loads(unmeasured.read_text()).values()) == ["onednn"]


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate()[0].strip() for process in started}
    assert len(answers) == 1 and answers <= {"aten", "onednn"}
    assert set(json.loads((tmp_path / "routes.json").read_text()).values()) == answers


def test_without_a_cache_folder_the_process_measures_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIT_CACHE", str(tmp_path / "file" / "cache"))
    assert routes.float32_route(lambda: "onednn") == "onednn"
    assert "this process measures for itself" in capsys.readouterr().err


def test_a_fixed_route_wins_and_an_unknown_one_is_refused() -> None:
    routes.use_float32_route("aten")
    assert matmul.current_float32_route() == "aten"
    routes.use_float32_route("onednn")
    assert matmul.current_float32_route() == "onednn"
    with pytest.raises(UserError, match="float32_route='mkl': choose aten or onednn"):
        routes.use_float32_route("mkl")


def test_a_resumed_run_keeps_its_route_or_reports_why_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matmul, "float32_gain", lambda: 2.0)
    assert "does not record" in str(matmul.continue_on_route(None))
    assert matmul.current_float32_route() == "onednn"
    assert matmul.continue_on_route("aten") is None
    assert matmul.current_float32_route() == "aten"
    note = str(matmul.continue_on_route("onednn"))
    assert "float32_route=aten was requested, but the run began with onednn" in note
    assert matmul.current_float32_route() == "aten"
