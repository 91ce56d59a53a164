"""Recipes, command lines and config.yaml of earlier versions are read with current names."""

from pathlib import Path
from typing import Any

import pytest

from vit.errors import UserError
from vit.old_names import OLD_NAMES, Removed, current_arguments, current_options
from vit.recipes import list_recipes
from vit.yaml_reader import load_yaml, read_options, read_yaml

PROBE = "vit.training.linear_probe.LinearProbeFirst"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """One move of each kind."""
    names: dict[str, str | Removed] = {
        "vit.old.Muon": "vit.new.Muon",
        "vit.new.Muon.gone": Removed(3, "it is 3"),
        "data.seed": "data.splits.seed",
        "data.share": "data.splits.share",
        "model.group": "model.outer.group",
        "data.flag": Removed(True, "give --task"),
    }
    monkeypatch.setattr("vit.old_names.OLD_NAMES", names)


@pytest.mark.usefixtures("table")
def test_a_recipe_is_read_under_the_names_of_now() -> None:
    old = {
        "data": {"seed": 1, "flag": True, "root": "here"},
        "model": {
            "group": {"a": 1},
            "optimizer": {"class_path": "vit.old.Muon", "init_args": {"gone": 3, "lr": 1}},
        },
        "trainer": {"callbacks": ["vit.old.Muon", "lightning.Other"]},
    }
    assert current_options(old, "r.yaml") == {
        "data": {"splits": {"seed": 1}, "root": "here"},
        "model": {
            "outer": {"group": {"a": 1}},
            "optimizer": {"class_path": "vit.new.Muon", "init_args": {"lr": 1}},
        },
        "trainer": {"callbacks": ["vit.new.Muon", "lightning.Other"]},
    }
    assert old["data"]["seed"] == 1, "the argument is kept"


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--data.seed", "1", "--data.root", "a"], ["--data.splits.seed=1", "--data.root", "a"]),
        (["--data.seed=-1"], ["--data.splits.seed=-1"]),
        (["--model.group.a", "1"], ["--model.outer.group.a=1"]),
        (["--model.optimizer", "vit.old.Muon"], ["--model.optimizer=vit.new.Muon"]),
        (["--trainer.callbacks+=vit.old.Muon"], ["--trainer.callbacks+=vit.new.Muon"]),
        (["--data.flag", "true", "x"], ["x"]),
        (
            ["--model.optimizer", "vit.new.Muon", "--model.optimizer.gone", "3"],
            ["--model.optimizer", "vit.new.Muon"],
        ),
        (
            ["--model.optimizer=vit.old.Muon", "--model.optimizer.init_args.gone=3"],
            ["--model.optimizer=vit.new.Muon"],
        ),
        (["--data", "{seed: 1, flag: true}"], ["--data.splits.seed=1"]),
        (["--run_dir", "data.seed", "-c", "vit.old.Muon"], "same"),
        (["--data.root", "", "--data.seedy="], "same"),
        (["--data.root=x=y", "--data.seedy", "1", "--model.architecture={a: 1}"], "same"),
    ],
)
def test_a_command_line_is_read_under_the_names_of_now(given: list[str], expected: Any) -> None:
    assert current_arguments(given) == (given if expected == "same" else expected)


@pytest.mark.usefixtures("table")
def test_a_mapping_of_several_options_is_renamed_inside() -> None:
    (found,) = current_arguments(["--data={seed: 1, root: here}"])
    option, _, text = found.partition("=")
    assert (option, load_yaml(text, "")) == ("--data", {"root": "here", "splits": {"seed": 1}})


@pytest.mark.usefixtures("table")
def test_a_removed_option_with_another_value_is_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match=r"^r: data.flag=False .*give --task$"):
        current_options({"data": {"flag": False}}, "r: ")
    with pytest.raises(UserError, match=r"^data.flag=False .*give --task$"):
        current_arguments(["--data.flag", "false"])
    muon = {"class_path": "vit.old.Muon", "init_args": {"gone": 4}}
    with pytest.raises(UserError, match=r"Muon.gone=4 .*it is 3$"):
        current_options({"model": {"optimizer": muon}}, "r")


@pytest.mark.usefixtures("table")
def test_both_names_of_an_option_are_refused() -> None:
    with pytest.raises(UserError, match=r"data.seed is now data.splits.seed, and both are given"):
        current_options({"data": {"seed": 1, "splits": {"seed": 1}}}, "r")
    with pytest.raises(UserError, match="splits holds no options"):
        current_options({"data": {"seed": 1, "splits": "file.yaml"}}, "r")


@pytest.mark.usefixtures("table")
def test_a_section_in_a_separate_file_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("seed: 1\nroot: here\n")
    (tmp_path / "recipe.yaml").write_text("data: data.yaml\n")
    now = {"splits": {"seed": 1}, "root": "here"}
    assert read_options(tmp_path / "recipe.yaml") == {"data": now}
    (tmp_path / "data.yaml").write_text("root: here\n")
    assert read_options(tmp_path / "recipe.yaml") == {"data": "data.yaml"}
    (tmp_path / "data.yaml").unlink()
    assert read_options(tmp_path / "recipe.yaml") == {"data": "data.yaml"}


def test_the_shipped_recipes_have_the_names_of_now() -> None:
    for path in list_recipes().values():
        assert read_options(path) == read_yaml(path), path


def test_every_new_name_exists() -> None:
    import importlib

    for name, new in OLD_NAMES.items():
        if name.startswith("vit.") and isinstance(new, str):
            module, _, owner = new.rpartition(".")
            assert isinstance(getattr(importlib.import_module(module), owner), type), new


def test_the_probe_takes_its_images_as_before() -> None:
    def config(number: int) -> dict[str, Any]:
        callback = {"class_path": PROBE, "init_args": {"max_images": number}}
        return {"trainer": {"callbacks": [callback]}}

    kept = current_options(config(10_000), "config.yaml")
    assert kept["trainer"]["callbacks"][0]["init_args"] == {}
    with pytest.raises(UserError, match=r"LinearProbeFirst.max_images=20 .*10,000"):
        current_options(config(20), "config.yaml")
