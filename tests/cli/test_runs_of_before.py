"""What was typed, and what a run has saved, before names changed gives the same run as now."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import TINY, Vit
from vit.cli.lightning_cli import TrainingCLI
from vit.old_names import OLD_NAMES, Removed, current_options

# A name of before, typed with another value than the default: (old option, value, its place now).
TYPED = [
    ("data.val_fraction", "0.25", "data.splits.val_fraction"),
    ("data.test_fraction", "0.3", "data.splits.test_fraction"),
    ("data.num_workers", "1", "data.loading.num_workers"),
    ("data.cache", "none", "data.loading.cache"),
    ("data.on_error", "skip", "data.loading.on_error"),
    ("model.layer_decay", "0.5", "model.learning.layer_decay"),
    ("model.freeze_backbone", "true", "model.learning.freeze_backbone"),
]
FIT = ("-c", "cifar10", *TINY)


def resolved(*args: str) -> dict[str, Any]:
    """The configuration that the arguments of `vit fit` come to, as config.yaml has it."""
    stop: list[Any] = []

    class Enough(Exception):
        pass

    def parsed(cli: Any) -> None:
        stop.append(cli.config)
        raise Enough

    with pytest.raises(Enough):
        TrainingCLI([*args], parsed=parsed)
    content = stop[0].as_dict()
    return {name: value for name, value in content.items() if name != "config"}


def nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def as_before(config: dict[str, Any]) -> dict[str, Any]:
    """A config.yaml of now as the version before had it."""
    before = json.loads(json.dumps(config))
    for old, new in OLD_NAMES.items():
        if old.startswith("vit.") or isinstance(new, Removed):
            continue
        *groups, key = new.split(".")
        parent = before
        for group in groups:
            parent = parent.get(group) or {}
        if key in parent:
            value = parent.pop(key)
            *groups, key = old.split(".")
            target = before
            for group in groups:
                target = target[group]
            target[key] = value
    text = yaml.safe_dump(before)
    for old, new in OLD_NAMES.items():
        if old.startswith("vit.") and isinstance(new, str):
            text = text.replace(new, old)
    before = yaml.safe_load(text)
    for section, group in (("data", "splits"), ("data", "loading"), ("model", "learning")):
        assert not before[section].pop(group)
    before["data"]["classes"] = None
    assert before["data"].pop("global_batch") is None and before.pop("patience") is None
    return before


def test_every_moved_option_is_tried() -> None:
    moved = {
        old: new
        for old, new in OLD_NAMES.items()
        if isinstance(new, str) and not old.startswith("vit.")
    }
    assert moved == {old: new for old, _, new in TYPED} | {"data.seed": "data.splits.seed"}


@pytest.mark.parametrize(("old", "value", "new"), TYPED)
def test_an_option_works_under_its_old_name_wherever_it_is_given(
    old: str, value: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = resolved(*FIT, f"--{new}={value}")
    assert expected != resolved(*FIT)
    assert resolved(*FIT, f"--{old}={value}") == expected
    assert resolved(*FIT, f"--{old}", value) == expected
    Path("mine.yaml").write_text(yaml.safe_dump(nested(old, yaml.safe_load(value))))
    assert resolved(*FIT, "-c", "mine.yaml") == expected


def test_a_run_of_before_is_scored_resumed_and_repeated(vit: Vit, photos: Path) -> None:
    options = ("--data.root", photos, "--data.splits.val_fraction=0.2", "--data.loading.cache=none")
    short = ("--trainer.max_epochs=-1", "--trainer.log_every_n_steps=1")  # any length is alike:
    short += ("--model.schedule.decay=constant", "--model.schedule.warmup_steps=0")
    command = ("fit", "-c", "cifar10", *TINY, *options, *short)
    whole = vit(*command, "--trainer.max_steps=6", "--run_dir=whole")
    assert whole.status == 0, whole.err
    assert vit(*command, "--trainer.max_steps=4", "--run_dir=part").status == 0
    scores = vit("test", "part", "--json").out
    config = Path("part/config.yaml")
    now = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(as_before(now)))
    old = yaml.safe_load(config.read_text())
    assert "val_fraction" in old["data"] and "vit.training.muon" in config.read_text()
    assert {**current_options(old)["data"], "global_batch": None} == now["data"]

    assert vit("test", "part", "--json").out == scores
    again = vit("fit", "-c", config, "--run_dir=again")
    assert again.status == 0, again.err
    assert losses("again") == losses("part")
    done = vit("fit", "--run_dir=part", "--ckpt_path=last", "--trainer.max_steps=6")
    assert done.status == 0, done.err
    assert losses("part") == losses("whole")
    assert yaml.safe_load(config.read_text())["data"] == now["data"]


def losses(run: str) -> dict[str, str]:
    with Path(run, "metrics.csv").open() as file:
        return {row["step"]: row["train/loss"] for row in csv.DictReader(file) if row["train/loss"]}


def test_a_removed_option_is_refused_in_one_line(vit: Vit, photos: Path) -> None:
    done = vit("fit", *FIT, "--data.root", photos, "--data.classes=[a,b]")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "data.classes=['a', 'b']" in done.err and "vit test RUN --data.root" in done.err
