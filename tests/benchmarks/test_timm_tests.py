"""timm's tests of our models are counted as they end, and the page has the committed counts."""

import json
from pathlib import Path

import pytest

from benchmarks.parity import timm_tests

timm = pytest.importorskip("timm")

SOURCE = """\
import pytest, timm

def test_model_forward(model_name, batch_size):
    timm.create_model(model_name, num_classes=0)

def test_model_backward(model_name, batch_size):
    assert not model_name.startswith("bit"), "too large"

def test_model_forward_features(model_name, batch_size):
    pytest.skip("another day")

test_model_forward_intermediates = test_model_forward_intermediates_features = test_model_forward

def test_model_default_cfgs(model_name, batch_size, cfg_device):
    assert cfg_device == "meta"

test_model_default_cfgs_non_std = test_model_default_cfgs
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Sources with tests that pass, fail and are skipped."""
    for name, text in {
        "timm/version.py": f"__version__ = '{timm.__version__}'\n",
        "tests/test_models.py": SOURCE,
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_quick_run_counts_what_passes(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timm_tests, "installed", lambda *names: {})
    file = clone / "results.json"
    content = timm_tests.main([str(clone), "--quick", "--results", str(file)])
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())
    assert [timm_tests.passed(content["rows"], side) for side in ("ours", "timm")] == [11, 12]
    failed = {(row["test"], row["model"]): row["ours"] for row in content["rows"]}
    assert failed["backward", "bit_r50x1"] == "failed: AssertionError: too large"
    assert failed["forward_features", "vit_ti16"] == "skipped: another day"


def test_sources_of_another_version_are_refused(clone: Path) -> None:
    (clone / "timm" / "version.py").write_text("__version__ = '0.1'\n")
    with pytest.raises(SystemExit, match=r"is timm 0\.1, but"):
        timm_tests.tests_of(clone)


def test_the_page_has_the_committed_counts() -> None:
    assert timm_tests.page() == timm_tests.PAGE.read_text(encoding="utf-8")
    content = timm_tests.load(timm_tests.NAME)
    assert len(content["rows"]) == len(timm_tests.TESTS) * len(timm_tests.MODELS) == 70
    assert timm_tests.passed(content["rows"], "ours") == 62
