"""A user's mistakes: exit status 2, one line, before any training."""

from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Vit

MISTAKES = [
    (["fit", "-c", "quickstrt"], "did you mean 'quickstart'?"),
    (["fit", "-c", "quickstart", "--model.lrr", "3"], "did you mean --model.optimizer.lr?"),
    (["fit", "-c", "quickstart", "--data.rot", "x"], "did you mean --data.root?"),
    (["fit", "-c", "quickstart", "--trainer.max_epoch", "3"], "did you mean --trainer.max_epochs?"),
    (["fit", "-c", "quickstart", "--trainer.max_epochs", "ten"], "trainer.max_epochs=ten"),
    (["fit", "-c", "quickstart", "--model.optimizer.lrr", "3"], "takes no option 'lrr'"),
    (["fit", "-c", "quickstart", "--model.name", "vit_b61"], "did you mean 'vit_b16'"),
    (["fit", "-c", "quickstart", "--model.num_classes", "3"], "follows from the data"),
    (["fit", "-c", "quickstart", "--model.architecture.widht", "3"], "did you mean 'width'?"),
    (["fit", "-c", "quickstart", "--data.image_size", "9"], "image_size=9x9 is not a multiple"),
    (["fit", "-c", "quickstart", "--data.augment.crop", "foo"], "data.augment.crop"),
    (["fit", "-c", "quickstart", "--data.dataset", "digitz"], "'digits'"),
    (["fit", "-c", "quickstart", "--data.root", "nowhere"], "nowhere"),
    (["fit", "-c", "quickstart", "--final_split", "tset"], "final_split='tset'"),
    (["fit", "-c", "quickstart", "--ckpt_path", "no.ckpt"], "no checkpoint at no.ckpt"),
    (["fit", "-c", "quickstart", "--ckpt_path", "last"], "needs --run_dir"),
    (["fit", "-c", "quickstart", "--model.layer_decay", "2"], "layer_decay=2.0"),
    (["fit", "-c", "quickstart", "--model.schedule.decay", "cosin"], "is not one of 'cosine', "),
    (["fit", "-c", "quickstart", "--model.optimizer.lr", "abc"], "optimizer.lr=abc is not a float"),
    (["fit", "-c", "quickstart", "--model.optimizer", "SGDD"], "such as torch.optim.AdamW"),
    (["fit", "-c", "quickstart", "--model.loss.label_smothing", "1"], "mean 'label_smoothing'?"),
    (["fit", "-c", "quickstart", "--trainer.max_time", "abc"], "'abc'"),
    (["fit", "-c", "quickstart", "--trainer.strategy", "foo"], "strategy='foo'"),
    (["fit", "-c", "quickstart", "--trainer.devices", "0"], "devices='0'"),
    (["fit", "-c", "quickstart", "--trainer.val_check_interval", "0"], "must be more than 0"),
    (["fit", "-c", "quickstart", "--run_dir", "/dev/null/run"], "--run_dir /dev/null/run: cannot"),
    (["fit"], ""),
    (["fit", "--data.root", "photos"], "no recipe: give one"),
    (["test", "nowhere"], "nowhere is not a run directory"),
    (["test", "nowhere", "--split", "tset"], "invalid choice: 'tset'"),
    (["classify", "nowhere", "x.jpg"], "x.jpg"),
    (["classify", "nowhere"], "required: images; see `vit classify --help`"),
    (["classify", "nowhere", "x.jpg", "--topp", "3"], "unrecognized arguments: --topp 3"),
    (["convert", "nowhere", "x", "--to", "tim"], "invalid choice: 'tim'"),
    (["models", "--jsno"], "--jsno"),
]


@pytest.mark.parametrize(("args", "part"), MISTAKES, ids=lambda v: "_".join(v) if v else "")
def test_a_mistake_is_one_line(vit: Vit, args: list[str], part: str) -> None:
    done = vit(*args)
    if args == ["fit"]:
        assert done.status == 0
        assert "usage: vit fit -c RECIPE" in done.out
        return
    lines = [line for line in done.err.splitlines() if not line.startswith("precision")]
    assert done.status == 2
    assert len(lines) == 1, done.err
    assert lines[0].startswith("vit: ")
    assert part in lines[0]
    assert not Path("runs").exists()


YAML_MISTAKES = [
    ("data:\n  batchsize: 3", "no option data.batchsize; did you mean --data.batch_size?"),
    ("modle:\n  name: vit_ti16", "did you mean --model.name?"),
    ("data: {image_size: 8\ntrainer: [", "mine.yaml, line 2: not valid YAML"),
    ("- a\n- b", "mine.yaml has no options"),
    ("", "mine.yaml has no options"),
    ("\0", "mine.yaml cannot be read as YAML"),
    ("model: {schedule: {decay: cosin}}", "model.schedule.decay=cosin is not one of 'cosine'"),
    ("model: {loss: {label_smothing: 1}}", "did you mean 'label_smoothing'?"),
    (
        "model: {optimizer: {class_path: torch.optim.SGD, init_args: {lr: 1, momentun: 0.9}}}",
        "model.optimizer takes no option 'momentun'; did you mean 'momentum'?",
    ),
    ("model: {optimizer: {class_path: torch.optim.AdamWW}}", "did you mean 'AdamW'"),
    ("trainer: {callbacks: [{class_path: vit.training.callbacks.EMAA}]}", "did you mean 'EMA'?"),
]


@pytest.mark.parametrize(("text", "part"), YAML_MISTAKES)
def test_a_mistake_in_a_recipe_is_one_line(vit: Vit, text: str, part: str) -> None:
    Path("mine.yaml").write_text(text)
    done = vit("fit", "-c", "quickstart", "-c", "mine.yaml")
    assert done.status == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert part in done.err


def test_a_wrong_value_does_not_suggest_another_option(vit: Vit) -> None:
    assert "did you mean" not in vit("fit", "-c", "quickstart", "--model.schedule.decay=x").err


def test_a_wrong_device_is_one_line(vit: Vit, photos: Path) -> None:
    vit("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_steps=1")
    done = vit("classify", "runs/cifar10", photos / "red" / "00.jpg", "--device", "tpux")
    assert done.status == 2
    assert done.err.startswith("vit: --device tpux cannot be used: ")
    assert len(done.err.splitlines()) == 1


def test_a_truncated_image_is_named_and_can_be_skipped(vit: Vit, photos: Path) -> None:
    broken = photos / "red" / "00.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    args = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_epochs=1")
    done = vit(*args)
    assert done.status == 2
    assert "00.jpg" in done.err.splitlines()[-1]
    done = vit(*args, "--data.on_error=skip")
    assert done.status == 0
    assert "00.jpg" in done.err


def test_weights_do_not_go_to_ckpt_path(vit: Vit, tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"x")
    done = vit("fit", "-c", "quickstart", "--ckpt_path", "weights.safetensors")
    assert done.status == 2
    assert "--model.pretrained" in done.err


def test_a_run_is_not_overwritten(vit: Vit) -> None:
    Path("mine/checkpoints").mkdir(parents=True)
    Path("mine/checkpoints/last.ckpt").write_bytes(b"")
    Path("mine/config.yaml").write_text("")
    done = vit("fit", "-c", "quickstart", "--run_dir", "mine")
    assert done.status == 2
    assert "already holds a run" in done.err


def test_a_checkpoint_does_not_change_what_the_user_typed(vit: Vit) -> None:
    """Lightning's own --ckpt_path would bring the checkpoint's hyperparameters back."""
    args = ("fit", "-c", "quickstart", "--run_dir", "r", "--final_split=none")
    vit(*args, "--trainer.max_epochs=1", "--data.batch_size=100")
    from vit.cli.lightning_cli import TrainingCLI

    cli = TrainingCLI(
        ["-c", "r/config.yaml", "--ckpt_path", "r/checkpoints/last.ckpt", "--model.layer_decay=0.5"]
    )
    assert cli.model.layer_decay == 0.5
    assert cli.datamodule.batch_size == 100
