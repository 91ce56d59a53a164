"""`vit.fit`: the same names and the same run as on the command line; and the caller's objects."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torchvision.datasets import ImageFolder

import vit
from tests.command import TINY, Vit
from vit.errors import UserError
from vit.recipes import read_options
from vit.signals import Stopped

OPTIONS: dict[str, Any] = {
    "model": {
        "pretrained": None,
        "architecture": {"patch_size": 8, "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 1},
    },
    "trainer": {"precision": "32-true", "max_steps": 4, "enable_progress_bar": False},
}
DATA: dict[str, Any] = {"image_size": 16, "batch_size": 8, "loading": {"num_workers": 0}}


@pytest.fixture
def vit_command(request: pytest.FixtureRequest) -> Vit:
    """The command, under a name beside that of the package."""
    return request.getfixturevalue("vit")


def assert_same_weights(*runs: str) -> None:
    one, other = (load_file(f"{run}/model/model.safetensors") for run in runs)
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_run_in_python_is_the_run_of_the_command_line(vit_command: Vit, photos: Path) -> None:
    run = vit.fit("finetune", data={"root": photos, **DATA}, run_dir="a", **OPTIONS)
    typed = (*TINY, "--model.pretrained=null", "--trainer.max_steps=4", "--run_dir=b")
    done = vit_command("fit", "-c", "finetune", "--data.root", photos, *typed)
    assert done.status == 0, done.err
    assert_same_weights("a", "b")
    assert run.path == Path("a") and run.metrics == vit.Run(Path("b")).metrics
    assert run.classifier().classes == ["blue", "grün", "red"]
    scores = {name: value for name, value in run.metrics.items() if name.startswith("test/")}
    assert {name: run.test()[name] for name in scores} == pytest.approx(scores)
    assert run.test(split="train").keys() == {name.replace("test", "train") for name in scores}
    [answer] = run.predict("my photos/red/00.jpg")
    assert answer.label in run.classifier().classes and run.report.name == "report.html"
    assert run.history[-1]["test/acc1"] == pytest.approx(run.metrics["test/acc1"])


def test_a_run_goes_on_and_a_folder_is_enough(vit_command: Vit, photos: Path) -> None:
    options = {**OPTIONS, **{f"data.{name}": value for name, value in DATA.items()}}
    run = vit.fit(photos, final_split="none", **options)
    assert run.path == Path("runs/my photos-finetune") and run.metrics == {}
    longer = vit.fit(run_dir=run.path, trainer={"max_steps": 6})
    assert longer.path == run.path and longer.summary["steps"] == 6


def test_a_mistake_is_the_one_line_of_the_command_line(vit_command: Vit) -> None:
    with pytest.raises(UserError, match=r"trainer.max_epoch=1; .*'trainer.max_epochs'"):
        vit.fit("quickstart", trainer={"max_epoch": 1})
    with pytest.raises(UserError, match="no data"):
        vit.fit()


def test_a_recipe_gives_the_modules_that_a_run_trains(vit_command: Vit, photos: Path) -> None:
    own = {"augment": solarized, **OPTIONS}
    model, data = vit.from_recipe("finetune", data={"root": photos, **DATA}, **own)
    assert isinstance(model, vit.ImageClassifier) and isinstance(data, vit.ImageData)
    assert data.classes == ["blue", "grün", "red"] and data.batch_size == 8
    assert data.augment.extra is solarized
    assert model.model.config.to_dict().items() >= {"num_classes": 3, "width": 16}.items()
    assert not Path("runs").exists()
    with pytest.raises(UserError, match="callbacks: give them to your own Trainer"):
        vit.from_recipe("finetune", data={"root": photos, **DATA}, callbacks=[StopsAfter(1)])


class StopsAfter(Callback):
    """Ctrl-C in a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGINT)


def solarized(image: Image.Image) -> Image.Image:
    """Every second image."""
    return ImageOps.solarize(image) if torch.rand(1) < 0.5 else image


OWN = {f"data.{name}": value for name, value in DATA.items()} | OPTIONS


def test_pairs_train_as_the_folder_of_their_files(vit_command: Vit, photos: Path) -> None:
    pairs = [(path, path.parent.name) for path in sorted(photos.rglob("*.jpg"))]
    whole = {"data.splits": {"val_fraction": 0, "test_fraction": 0}, "final_split": "none", **OWN}
    vit.fit("finetune", data=photos, run_dir="folder", **whole)
    vit.fit("finetune", data=pairs, run_dir="pairs", **whole)
    assert_same_weights("folder", "pairs")
    vit.fit("finetune", data=pairs, augment=solarized, run_dir="changed", **whole)
    with pytest.raises(AssertionError):
        assert_same_weights("folder", "changed")


def test_the_same_call_resumes_exactly_and_a_command_says_what_it_lacks(
    vit_command: Vit, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(run_dir: str, stop: int, data: Any = None) -> vit.Run:
        data, stops = data or ImageFolder(str(photos)), [StopsAfter(stop)]
        options: dict[str, Any] = {"callbacks": stops, "augment": solarized, **OWN}
        return vit.fit("finetune", data=data, run_dir=run_dir, **options)

    straight = fit("straight", 0)
    with pytest.raises(Stopped):
        fit("run", 2)
    assert "the same call of vit.fit with run_dir='run' continues it" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"cannot resume .* digest of the images and lab"):
        fit("run", 0, ImageFolder(str(photos), target_transform=lambda number: 2 - number))
    assert fit("run", 0).metrics == straight.metrics
    assert_same_weights("straight", "run")
    assert "\n  vit test run --data FOLDER\n" in capsys.readouterr().out
    assert read_options(Path("run/config.yaml"))["own"] == ["images", "callbacks", "augment"]
    for command in (
        ("fit", "--run_dir", "run"),
        *((c, "run") for c in ("test", "validate", "predict")),
    ):
        done = vit_command(*command)
        assert done.status == 2 and done.err.count("\n") == 1, done.err
        assert "from Python, which its directory does not hold: repeat the call" in done.err
    scored = vit_command("test", "run", "--data", photos)
    assert scored.status == 0 and "of 36 images" in scored.out + scored.err
    assert vit_command("runs", ".").status == 0
    assert vit.load("run").classes == ["blue", "grün", "red"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": [], "val": "photos"}, "train has no images"),
        ({"val": [("a.jpg", 0)]}, "train is of type NoneType; give a folder"),
        ({"data": [("a.jpg", 0)], "data.root": "."}, "data.root=. and data are two sets of images"),
        ({"data.dataset": "digits", "data.root": "."}, "data.root=. are two sets of images"),
        (
            {"data": ".", "run_dir": "a", "output_dir": "b"},
            "--output_dir and --run_dir are one option; give one",
        ),
        (
            {"data": ".", "model": torch.nn.Linear(1, 1)},
            "model is a Linear; give options, such as model=",
        ),
        ({"data": ".", "augment": True}, "augment is a bool; give a function"),
        ({"data": ".", "pretrained": False}, "leave --pretrained out"),
    ],
)
def test_objects_that_cannot_be_used_are_one_line(
    vit_command: Vit, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        vit.fit("finetune", **arguments)


def test_a_run_is_opened_by_the_text_of_its_path(vit_command: Vit) -> None:
    Path("runs/photos-probe").mkdir(parents=True)
    Path("runs/photos-probe/summary.json").write_text('{"metrics": {"test/acc1": 0.5}}')
    assert vit.Run("runs/photos-probe").metrics == {"test/acc1": 0.5}  # pyright: ignore
    with pytest.raises(UserError, match=r"split='foo' is unknown; choose train \| val \| test"):
        vit.Run("runs/photos-probe").test(split="foo")  # pyright: ignore
    with pytest.raises(UserError, match=r"runs/photos-prob has no summary.*mean 'photos-probe'\?"):
        _ = vit.Run("runs/photos-prob").summary  # pyright: ignore
    Path("a.jpg").touch()
    for command in ("classify", "test"):
        done = vit_command(command, "runs/photos-prob", *["a.jpg"] * (command == "classify"))
        assert done.status == 2 and "did you mean 'photos-probe'?" in done.err


def test_a_folder_in_place_of_a_data_set_is_named(vit_command: Vit) -> None:
    Path("small").mkdir()
    with pytest.raises(UserError, match="dataset='small' is a place of files; give root='small'"):
        vit.ImageData("small")
