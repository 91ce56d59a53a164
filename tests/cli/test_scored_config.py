"""Scoring a run imports nothing that its directory names."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import TINY, Vit
from vit.cli.scored_config import scored_config
from vit.errors import UserError

EVIL = {"class_path": "evilmod.Evil"}


@pytest.fixture
def run(vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, and a module in reach of imports that leaves a trace."""
    (photos.parent / "evilmod.py").write_text("open('imported', 'w')\nclass Evil: pass\n")
    monkeypatch.syspath_prepend(photos.parent)
    monkeypatch.delitem(sys.modules, "evilmod", raising=False)
    args = ("-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_steps=2")
    assert vit("fit", *args, "--run_dir=run").status == 0
    return Path("run")


@pytest.mark.parametrize(
    "change",
    [
        {"trainer": {"callbacks": [EVIL]}},
        {"trainer": {"logger": EVIL, "profiler": EVIL, "strategy": EVIL, "plugins": [EVIL]}},
        {"trainer": {"accelerator": EVIL}},
        {"model": {"optimizer": EVIL, "schedule": EVIL, "mixing": EVIL}},
        {"model": {"loss": {"distillation": EVIL}}},
        {"trainer": {"callbacks": "evilmod.Evil"}},
    ],
)
@pytest.mark.parametrize("command", ["test", "predict"])
def test_what_training_needs_is_not_looked_at(
    change: dict[str, dict[str, object]], command: str, run: Path, vit: Vit
) -> None:
    content = yaml.safe_load((run / "config.yaml").read_text())
    for group, values in change.items():
        content[group].update(values)
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    done = vit(command, run)
    assert done.status == 0, done.err
    assert not Path("imported").exists() and "evilmod" not in sys.modules


@pytest.mark.parametrize("name", ["augment", "inputs", "sampling"])
def test_a_class_of_elsewhere_in_the_data_is_refused_unimported(
    name: str, run: Path, vit: Vit
) -> None:
    content = yaml.safe_load((run / "config.yaml").read_text())
    content["data"][name] = EVIL
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    done = vit("test", run)
    assert done.status == 2
    assert f"run/config.yaml: data.{name} names evilmod.Evil, a class outside this" in done.err
    assert not Path("imported").exists() and "evilmod" not in sys.modules


def test_the_scores_are_those_of_the_whole_configuration(run: Path, vit: Vit) -> None:
    summary = json.loads((run / "summary.json").read_text())
    scores = json.loads(vit("test", run, "--json").out)
    assert scores == {
        name: pytest.approx(value)
        for name, value in summary["metrics"].items()
        if name.startswith("test/")
    }


def test_only_plain_values_of_the_trainer_pass() -> None:
    trainer = {"devices": 1, "precision": None, "accelerator": ["cpu"], "max_epochs": 3}
    content = {"task": "classification", "trainer": trainer, "data": {"root": "x"}, "other": 1}
    config = scored_config(content, Path("config.yaml"))
    assert config == {
        "task": "classification",
        "data": {"root": "x"},
        "model": {},
        "trainer": {"devices": 1, "precision": None},
    }


def test_classes_of_this_package_and_imported_ones_pass() -> None:
    for path in ("vit.data.transforms.TrainTransform", "pathlib.Path"):
        content = {"data": {"augment": {"class_path": path}}}
        assert scored_config(content, Path("x"))["data"] == content["data"]
    for path in ("evilmod.Evil", "Evil", "vitality.Evil"):
        with pytest.raises(UserError, match=r"data\.list names"):
            scored_config({"data": {"list": [{"class_path": path}]}}, Path("x"))


def test_predictions_come_with_the_figures(run: Path, vit: Vit) -> None:
    content = json.loads(vit("predict", run, "--json").out)
    images = json.loads((run / "summary.json").read_text())["images"]["test"]
    assert len(content["predictions"]) == images
    right = 0
    for row in content["predictions"]:
        names = [entry["class"] for entry in row["top"]]
        shares = [entry["probability"] for entry in row["top"]]
        assert set(names) == {"red", "grün", "blue"} and shares == sorted(shares, reverse=True)
        assert row["image"].endswith(".jpg") and row["label"][0] in row["image"]
        right += row["label"] == names[:1]
    assert content["test/acc1"] == pytest.approx(right / images)


def test_fit_prints_its_summary_as_json(vit: Vit, photos: Path) -> None:
    args = ("-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_steps=2")
    done = vit("fit", *args, "--run_dir=run", "--json")
    assert json.loads(done.out) == json.loads(Path("run/summary.json").read_text())
    assert "test accuracy" in done.err
