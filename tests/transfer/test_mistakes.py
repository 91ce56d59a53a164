"""What `vit transfer` refuses, in one line, before it trains anything."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import TINY, Vit
from tests.transfer.test_transfer import FAST, SMALL, Calls, small_model, without_training
from vit.errors import UserError


@pytest.fixture
def pretrained(vit: Vit) -> Path:
    return small_model()


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    return without_training(monkeypatch)


MISTAKES = [
    (["--data=cifar11"], "--data cifar11: no data set has this name"),
    (["--data=cifar11"], "did you mean 'cifar10'"),
    (["--data=,"], "--data is empty"),
    (["--data=digits,digits"], "--data has 'digits' twice; name one of them"),
    (["--data=small.yaml"], "small.yaml is neither a folder nor a .csv"),
    (["--data=../x=."], "'../x' cannot name its folder"),
    (["--recipe=transfer/vti"], "no recipe or file named 'transfer/vti'"),
    (["--lr-grid="], "--lr-grid is empty"),
    (["--lr-grid=0.1,abc"], "--lr-grid '0.1,abc': could not convert string to float: 'abc'"),
    (["--lr-grid=0.1,-1"], "-1.0 is not a learning rate above 0"),
    (["--lr-grid=nan"], "nan is not a learning rate above 0"),
    (["--lr-grid=0.1,1e-1"], "has 0.1 twice"),
    (["--seeds=0"], "--seeds 0 must be at least 1"),
    (["--steps=0"], "--steps 0 must be at least 1"),
    (["--val-fraction=1"], "--val-fraction 1.0 is not between 0 and 1"),
    (["--image-size=20"], "not a multiple of 8, the patch size of pre; add --image-size 24"),
    (["--out=/dev/null/x"], "--out /dev/null/x: cannot make this folder"),
    (["--", "--trainer.max_steps=3"], "--trainer.max_steps after -- is set for each cell"),
    (["--", "--resume=never"], "--resume after -- is set for each cell"),
    (["--", "--model.loss.label_smothing=3"], "did you mean 'model.loss.label_smoothing'"),
    (["--image-size=16", "--", "--data.image_size=16"], "give one of them"),
    (["--bogus"], "unrecognized arguments: --bogus; see `vit transfer --help`"),
]


@pytest.mark.parametrize(("args", "part"), MISTAKES, ids=lambda v: "_".join(v)[:30])
def test_a_mistake_is_one_line(
    vit: Vit, pretrained: Path, scored: Callable[..., Calls], args: list[str], part: str
) -> None:
    calls = scored({})
    before = ["--recipe=small.yaml", "--data=digits", "--steps=3", "--out=out"]
    done = vit("transfer", pretrained, *before, *args)
    lines = [line for line in done.err.splitlines() if not line.startswith("precision")]
    assert done.status == 2, done.err
    assert len(lines) == 1, done.err
    assert part in lines[0]
    assert calls == []


def test_model_data_and_environment_are_checked(
    vit: Vit, photos: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = vit("transfer", "nowhere.npz", "--data=digits", *FAST)
    assert done.status == 2
    assert "nowhere.npz" in done.err
    for split in ("train", "val"):
        (photos / split).mkdir()
        for name in ("red", "grün"):
            shutil.copytree(photos / name, photos / split / name)
    for name in ("red", "grün", "blue"):
        shutil.rmtree(photos / name)
    done = vit("transfer", pretrained, "--data", f"mine={photos}", *FAST[:2], "--out=b")
    assert done.status == 2
    assert "has no test images: give it a test folder" in done.err
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = vit("transfer", pretrained, "--data=digits", *FAST)
    assert "not by torchrun" in done.err


def test_another_plan_for_the_same_folder_is_refused(
    vit: Vit, photos: Path, pretrained: Path, scored: Callable[..., Calls]
) -> None:
    calls = scored({"seed-0": 0.5, "seed-1": 0.5})
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST, "--lr-grid=0.1")
    assert vit(*args, "--seeds=1").status == 0
    for changed, part in (
        (("--seeds=2",), "out was started with --seeds 1, now it is 2"),
        (("--seeds=1", "--steps=4"), "out was started with --steps 3, now it is 4"),
        (("--seeds=1", "--lr-grid=0.2"), "out was started with --lr-grid 0.1, now it is 0.2"),
        (("--seeds=1", "--image-size=16"), "--image-size not given, now it is 16"),
        (("--seeds=1", "--", *TINY[3:4]), "-- not given, now it is --data.loading.num_workers=0"),
    ):
        done = vit(*args, *changed)
        assert done.status == 2
        assert part in done.err
        assert len(done.err.splitlines()) == 1
    Path("small.yaml").write_text(SMALL.replace("0.9", "0.8"))
    done = vit(*args, "--seeds=1")
    assert done.status == 2
    assert "out was started with recipes small.yaml" in done.err
    Path("small.yaml").write_text(SMALL)
    shutil.copy(photos / "red" / "00.jpg", photos / "red" / "new.jpg")
    done = vit(*args, "--seeds=1")
    assert done.status == 2
    assert "the images of mine have changed since out was started" in done.err
    assert len(calls) == 1


def test_class_names_that_csv_cannot_represent_are_refused(
    vit: Vit, photos: Path, pretrained: Path, scored: Callable[..., Calls]
) -> None:
    calls = scored({})
    (photos / "red").rename(photos / "red|pink")
    done = vit("transfer", pretrained, "--data", f"mine={photos}", *FAST)
    assert done.status == 2
    assert "class names with '|' or outer blanks cannot be listed: ['red|pink']" in done.err
    assert calls == []


def test_a_fitting_image_size_is_named_not_taken() -> None:
    from vit.transfer.tasks import check_image_size

    check_image_size(518, 14, "H_14.npz")
    check_image_size([32, 64], 16, "B_16.npz")
    with pytest.raises(UserError, match=r"14, the patch size of H_14.npz; add --image-size 392$"):
        check_image_size(384, 14, "H_14.npz")
    with pytest.raises(UserError, match=r"=384x200 .* add `-- --data.image_size \[392,210\]`$"):
        check_image_size([384, 200], 14, "H_14.npz")


def test_only_classifiers_are_transferred(vit: Vit, photos: Path, pretrained: Path) -> None:
    recipe = "--recipe=pretrain/masked_patches_cifar10"
    args = ("--data", f"mine={photos}", recipe, "--out=out", "--image-size=16")
    done = vit("transfer", pretrained, *args)
    assert done.status == 2
    assert "the task of the recipe is masked_patches" in done.err
