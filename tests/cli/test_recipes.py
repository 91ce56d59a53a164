"""Shipped recipes: found by name, complete, and every one builds."""

import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import Vit
from vit.cli.recipes import find_recipe, list_recipes
from vit.errors import UserError

RECIPES = list_recipes()


def test_the_promised_recipes_are_there() -> None:
    promised = {"quickstart", "cifar10", "finetune", "imagenet1k/vit_s16", "imagenet1k/vit_b16"}
    assert promised <= set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_parses_and_builds(name: str, photos: Path, vit: Vit) -> None:
    from vit.cli.lightning_cli import TrainingCLI

    cli = TrainingCLI(["-c", name, "--data.root", str(photos)])
    assert cli.model.num_classes == 3
    assert cli.model.labels.names == ["blue", "grün", "red"]
    assert cli.model.preprocess == cli.datamodule.preprocess.to_dict()
    trainer = cli.build_trainer(Path("runs/x"))
    cli.model.trainer = trainer
    trainer.fit_loop.setup_data = lambda: None  # type: ignore[method-assign]
    optimizer = cli.model.optimizer([{"params": [p], "names": [n]} for n, p in parameters(cli)])
    assert optimizer.param_groups


def parameters(cli: object) -> list[tuple[str, object]]:
    return list(cli.model.model.named_parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_is(name: str) -> None:
    header = [line for line in RECIPES[name].read_text().splitlines() if line.startswith("#")]
    assert len(header[0]) > 20
    if name != "quickstart":
        for part in ("run:", "source:", "results:"):
            assert any(line.startswith(f"# {part}") for line in header), part


def test_a_path_is_a_recipe_too(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("# mine\n")
    assert find_recipe(str(own)) == own


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="no recipe or file named 'quickstrt'; did you mean 'qui"):
        find_recipe("quickstrt")


def test_a_recipe_can_be_printed(vit: Vit) -> None:
    assert vit("recipes", "quickstart").out == RECIPES["quickstart"].read_text()


@pytest.mark.slow
def test_the_wheel_holds_the_recipes(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).parents[2]
    wheel = next(WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"]))
    held = zipfile.ZipFile(wheel).namelist()
    assert all(f"vit/configs/{name}.yaml" in held for name in RECIPES)
