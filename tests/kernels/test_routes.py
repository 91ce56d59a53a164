"""The routes of products: chosen once per machine, the same in every process and run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vit.errors import UserError
from vit.kernels import routes, runs
from vit.models.zoo import model_config

KEY = "dense.float32.training.wide"
GAINS = {"onednn": (1.5, 0.01), "products": None}
RECORDED = {"route": "onednn", "gains": {"onednn": [1.5, 0.01], "products": None}}
RACE = """
import random
from vit.kernels.routes import Choice, route_of
race = lambda key, only=None: Choice(random.choice(["plain", "onednn"]))
print(route_of("dense.float32.training.wide", race))
"""


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without measurements; the file for its choices."""
    monkeypatch.setenv("VIT_CACHE", str(tmp_path))
    for name in ("_fixed", "_chosen", "_possible"):
        monkeypatch.setattr(routes, name, {})
    monkeypatch.setattr(routes, "_all_plain", False)
    return tmp_path / "routes.json"


class Race:
    """A measurement with a given outcome, which counts its calls."""

    def __init__(self, outcome: str) -> None:
        self.outcome, self.calls = outcome, 0
        self.only_exists = True

    def __call__(self, key: str, only: str | None = None) -> routes.Choice:
        self.calls += 1
        if only is not None:
            return routes.Choice(only if self.only_exists else "plain")
        return routes.Choice(self.outcome, GAINS)


def test_the_first_measurement_holds_whatever_later_ones_would_say(
    unmeasured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = Race("onednn"), Race("plain")
    assert routes.route_of(KEY, first) == "onednn"
    monkeypatch.setattr(routes, "_chosen", {})  # as in another process
    assert routes.route_of(KEY, later) == "onednn"
    assert (first.calls, later.calls) == (1, 0)
    assert json.loads(unmeasured.read_text()) == {routes.machine(): {KEY: RECORDED}}
    assert routes.recorded_choices() == {KEY: routes.Choice("onednn", GAINS)}


def test_another_number_of_threads_is_measured_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    routes.route_of(KEY, Race("onednn"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 61)
    monkeypatch.setattr(routes, "_chosen", {})
    assert routes.route_of(KEY, Race("plain")) == "plain"


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}', "\0", "null", '{"a, b": "onednn"}'])
def test_a_damaged_or_old_record_is_measured_again(unmeasured: Path, content: str) -> None:
    unmeasured.write_text(content)
    assert routes.route_of(KEY, Race("onednn")) == "onednn"
    assert json.loads(unmeasured.read_text())[routes.machine()] == {KEY: RECORDED}


def test_another_version_of_the_measurement_measures_again(
    unmeasured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes.route_of(KEY, Race("onednn"))
    before = routes.machine()
    monkeypatch.setattr(routes, "MEASUREMENT", routes.MEASUREMENT + 1)
    routes.use_routes(None)
    assert routes.route_of(KEY, Race("plain")) == "plain"
    saved = json.loads(unmeasured.read_text())
    assert saved[before][KEY]["route"] == "onednn"
    assert saved[routes.machine()][KEY]["route"] == "plain"


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate()[0].strip() for process in started}
    assert len(answers) == 1 and answers <= {"plain", "onednn"}


def test_without_a_cache_folder_the_process_measures_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIT_CACHE", str(tmp_path / "file" / "cache"))
    assert routes.route_of(KEY, Race("onednn")) == "onednn"
    assert "this process measures for itself" in capsys.readouterr().err


def test_a_fixed_route_wins_where_it_exists_and_an_unknown_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes.use_routes({KEY: "onednn"})
    assert routes.route_of(KEY, Race("plain")) == "onednn"
    monkeypatch.setattr(routes, "_possible", {})  # as in another process
    routes.use_routes({KEY: "onednn"})
    missing = Race("plain")
    monkeypatch.setattr(missing, "only_exists", False)
    assert routes.route_of(KEY, missing) == "plain"
    routes.use_routes("plain")
    assert routes.route_of(KEY, Race("onednn")) == "plain"
    for wrong, message in (
        ({KEY: "mkl"}, "wide='mkl': choose plain or onednn"),
        ({"dance": "plain"}, "'dance' is not a key, such as dense.float32"),
        ("fast", "routes='fast': choose auto, plain"),
    ):
        with pytest.raises(UserError, match=message):
            routes.use_routes(wrong)


@pytest.mark.parametrize(
    ("name", "precision", "operations"),
    [
        ("vit_ti16", "32-true", {"dense", "dense_gelu", "tanh_gelu", "attention"}),
        ("deit_ti16", "bf16-mixed", {"dense", "dense_gelu", "attention"}),  # exact GELU
        ("vit_ti16", "64-true", set()),
        ("bit_r50x1", "32-true", set()),
    ],
)
def test_a_run_measures_what_its_model_needs(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: str, operations: set[str]
) -> None:
    monkeypatch.setattr(runs, "MEASURES", dict.fromkeys(runs.MEASURES, Race("plain")))
    config = model_config(name)
    chosen = runs.run_routes(config, precision, "cpu")
    assert {key.partition(".")[0] for key in chosen} == operations
    assert runs.run_routes(config, precision, "cuda") == {}
    dtype = "bfloat16" if precision.startswith("bf16") else "float32"
    assert all(key.split(".")[1] == dtype for key in chosen)


def test_a_resumed_run_keeps_its_routes_or_reports_why_not() -> None:
    race = Race("onednn")
    routes.route_of(KEY, race)
    assert "does not record" in str(runs.continue_on(None))
    assert runs.continue_on({KEY: "plain"}) is None
    assert routes.route_of(KEY, race) == "plain"
    routes.use_routes({KEY: "plain"})
    routes.route_of(KEY, race)
    note = str(runs.continue_on({KEY: "onednn"}))
    assert f"routes {KEY}=plain was requested, but the run began with onednn" in note


@pytest.mark.parametrize("asked", ["plain", {KEY: "plain"}])
def test_routes_that_differ_are_reported_before_the_first_is_used(asked: str | dict) -> None:
    routes.use_routes(asked)
    note = str(runs.continue_on({KEY: "onednn"}))
    assert f"routes {KEY}=plain was requested, but the run began with onednn" in note
    assert runs.continue_on({KEY: "plain"}) is None
    routes.use_routes(None)
    assert runs.continue_on({}) is None  # as of a run on a GPU


def test_a_route_is_checked_once_however_often_it_is_fixed() -> None:
    race = Race("onednn")
    routes.route_of(KEY, race)
    for fixed in ({KEY: "onednn"}, {KEY: "plain"}, {KEY: "onednn"}):
        routes.use_routes(fixed)
        assert routes.route_of(KEY, race) == fixed[KEY] and race.calls == 1
    routes.use_routes({KEY: "plain"})
    assert routes.route_of(KEY, race) == "plain"


def test_a_checkpoint_of_an_earlier_version_fixes_float32_products() -> None:
    assert runs.recorded_routes_of({}) is None
    for library, route in (("aten", "plain"), ("onednn", "onednn")):
        recorded = runs.recorded_routes_of({"vit": {"float32_route": library}})
        assert recorded is not None and recorded[KEY] == route
        assert {key.split(".")[1] for key in recorded} == {"float32"}
        assert set(recorded.values()) == {route}
        # What an earlier version computed by the same route: long sums, and the GELU behind.
        assert "dense.float32.training.deep" in recorded
        assert "dense_gelu.float32.inference.deep.gelu" in recorded


def test_the_routes_of_this_version_are_taken_as_they_are() -> None:
    saved = {
        "dense.float32.inference.wide": "onednn",
        "dense.float32.inference.deep": "plain",
        "dense_gelu.float32.inference.wide.gelu": "plain",
    }
    recorded = runs.recorded_routes_of({"vit": {"routes": saved}})
    assert recorded is not None and {key: recorded[key] for key in saved} == saved
