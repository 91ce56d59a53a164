"""`vit.fit`: the same names and the same run as on the command line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vit
from tests.command import TINY, Vit
from vit.errors import UserError

OPTIONS = {
    "model": {
        "pretrained": None,
        "architecture": {"patch_size": 8, "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 1},
    },
    "trainer": {"precision": "32-true", "max_steps": 4, "enable_progress_bar": False},
}
DATA = {"image_size": 16, "batch_size": 8, "loading": {"num_workers": 0}}


@pytest.fixture
def vit_command(request: pytest.FixtureRequest) -> Vit:
    """The command, under a name beside that of the package."""
    return request.getfixturevalue("vit")


def test_a_run_in_python_is_the_run_of_the_command_line(vit_command: Vit, photos: Path) -> None:
    run = vit.fit("finetune", data={"root": photos, **DATA}, run_dir="a", **OPTIONS)
    typed = (*TINY, "--model.pretrained=null", "--trainer.max_steps=4", "--run_dir=b")
    done = vit_command("fit", "-c", "finetune", "--data.root", photos, *typed)
    assert done.status == 0, done.err
    weights = [load_file(f"{name}/model/model.safetensors") for name in "ab"]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert run.path == Path("a") and run.metrics == vit.Run(Path("b")).metrics
    assert run.classifier().classes == ["blue", "grün", "red"]


def test_a_run_goes_on_and_a_folder_is_enough(vit_command: Vit, photos: Path) -> None:
    options = {**OPTIONS, **{f"data.{name}": value for name, value in DATA.items()}}
    run = vit.fit("finetune", data=photos, final_split="none", **options)
    assert run.path == Path("runs/my photos-finetune") and run.metrics == {}
    longer = vit.fit(run_dir=run.path, **{"trainer.max_steps": 6})
    assert longer.path == run.path and longer.summary["steps"] == 6


def test_a_mistake_is_the_one_line_of_the_command_line(vit_command: Vit) -> None:
    with pytest.raises(UserError, match=r"trainer.max_epoch; .*'trainer.max_epochs'"):
        vit.fit("quickstart", trainer={"max_epoch": 1})
    with pytest.raises(UserError, match="no data"):
        vit.fit()
    run = vit.fit("quickstart", **{"trainer.fast_dev_run": True, "data.batch_size": 400})
    assert not run.path.exists()


def test_a_recipe_gives_the_modules_that_a_run_trains(vit_command: Vit, photos: Path) -> None:
    model, data = vit.from_recipe("finetune", data={"root": photos, **DATA}, **OPTIONS)
    assert isinstance(model, vit.ImageClassifier) and isinstance(data, vit.ImageData)
    assert data.classes == ["blue", "grün", "red"] and data.batch_size == 8
    assert model.model.config.num_classes == 3 and model.model.config.width == 16
    assert not Path("runs").exists()
