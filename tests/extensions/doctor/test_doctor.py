"""`vit doctor` says what works, and what does not."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.command import Vit
from vit.extensions.doctor import doctor
from vit.hardware import versions


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_all_is_well_here_and_nothing_is_left(vit: Vit, scratch: Path) -> None:
    done = vit("doctor")
    assert (done.status, done.err) == (0, "")
    first, *lines = done.out.splitlines()
    assert first.split()[:3] == ["versions", "python", versions()["python"] + ","]
    assert [line.split()[:2] for line in lines] == [[name, "ok:"] for name in doctor.CHECKS]
    fit, resume = lines[-3:-1]
    assert " 20 steps, loss 0.69" in fit and "resumed at step 8: the weights are those" in resume
    assert not list(scratch.iterdir())


def test_files_that_run_code_when_python_starts_are_named(
    vit: Vit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"a.pth": "/folder\nimport os; print(1)\n", "b.pth": "# import os\nimports\n",
             "c.pth": "import\tsys"}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path / "none"))
    assert doctor.CHECKS["startup"](tmp_path).endswith("Python starts: a.pth, c.pth")


@pytest.mark.slow
def test_with_all_processes_and_exports_are_checked(
    vit: Vit, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    checks = ("fit",)
    monkeypatch.setattr(doctor, "CHECKS", {name: doctor.CHECKS[name] for name in checks})
    done = vit("doctor", "--all")
    assert (done.status, done.err) == (0, ""), done.out
    processes, export = done.out.splitlines()[-2:]
    assert processes == "processes  ok: two processes on the CPU took 20 steps"
    assert export.startswith("export     ok: .pt2: proved, .onnx: onnxruntime is not installed")


def test_what_is_broken_is_named(vit: Vit, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> str:
        raise OSError(f"no device in {os.path.expanduser('~/dev')}\nat all")

    def otherwise(folder: Path, name: str, *more: str) -> object:
        return trained(folder, name, *more, *(["--seed=1"] if name == "resumed" else []))

    trained = doctor._trained
    monkeypatch.setattr(doctor, "_trained", otherwise)
    monkeypatch.setattr(doctor, "STEPS", 21)
    monkeypatch.setitem(doctor.CHECKS, "device", broken)
    monkeypatch.setattr("vit.data.loaders.start_worker", lambda _: os._exit(1))
    done = vit("doctor", "--json")
    assert (done.status, done.err) == (1, "")
    report = json.loads(done.out)
    assert report["versions"] == versions()
    texts = {check["check"]: check["text"] for check in report["checks"] if not check["ok"]}
    assert texts.keys() == {"device", "workers", "fit", "resume"}
    assert texts["device"] == f"OSError: no device in ~{os.sep}dev at all"
    assert "exited unexpectedly" in texts["workers"] and "fallen in 21" in texts["fit"]
    assert "tensors are not the whole run's" in texts["resume"]
    assert not list(scratch.iterdir())
