"""A user's mistakes: exit status 2, one line, before any training."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Vit

CPU = "--trainer.accelerator=cpu"

MISTAKES = [
    (["train"], "unknown command 'train'; did you mean 'fit'?"),
    (["evaluate", "runs/x"], "did you mean 'test' or 'validate'?"),
    (["inference"], "did you mean 'classify' or 'predict'?"),
    (["fit", "-c", "quickstrt"], "did you mean 'quickstart'?"),
    (["fit", "-c", "quickstart", "--model.lrr", "3"], "did you mean --model.optimizer.lr?"),
    (["fit", "-c", "quickstart", "--data.rot", "x"], "did you mean --data.root?"),
    (["fit", "-c", "quickstart", "--trainer.max_epoch", "3"], "did you mean --trainer.max_epochs?"),
    (["fit", "-c", "quickstart", "--trainer.max_epochs", "ten"], "trainer.max_epochs=ten"),
    (["fit", "-c", "quickstart", "--model.optimizer.lrr", "3"], "takes no option 'lrr'"),
    (["fit", "-c", "quickstart", "--model.name", "vit_b61"], "did you mean 'vit_b16'"),
    (
        ["fit", "-c", "quickstart", "--model.num_classes", "3"],
        "unrecognized arguments: --model.num_classes",
    ),
    (["fit", "-c", "quickstart", "--model.architecture.widht", "3"], "did you mean 'width'?"),
    (["fit", "-c", "quickstart", "--data.image_size", "9"], "image_size=9x9 is not a multiple"),
    (["fit", "-c", "quickstart", "--data.augment.crop", "foo"], "data.augment.crop"),
    (["fit", "-c", "quickstart", "--data.dataset", "digitz"], "'digits'"),
    (["fit", "-c", "quickstart", "--data.root", "nowhere"], "nowhere"),
    (["fit", "-c", "quickstart", "--final_split", "tset"], "final_split='tset'"),
    (["fit", "-c", "quickstart", "--ckpt_path", "no.ckpt"], "no checkpoint at no.ckpt"),
    (["fit", "-c", "quickstart", "--ckpt_path", "last"], "needs --run_dir"),
    (["fit", "-c", "quickstart", "--model.learning.layer_decay", "2"], "layer_decay=2.0"),
    (["fit", "-c", "quickstart", "--model.schedule.decay", "cosin"], "is not one of 'cosine', "),
    (["fit", "-c", "quickstart", "--model.optimizer.lr", "abc"], "optimizer.lr=abc is not a float"),
    (["fit", "-c", "quickstart", "--model.optimizer", "SGDD"], "such as torch.optim.AdamW"),
    (["fit", "-c", "quickstart", "--model.loss.label_smothing", "1"], "mean 'label_smoothing'?"),
    (["fit", "-c", "quickstart", "--trainer.max_time", "abc"], "'abc'"),
    (["fit", "-c", "quickstart", "--trainer.strategy", "foo"], "strategy='foo'"),
    (["fit", "-c", "quickstart", "--trainer.devices", "0"], "devices='0'"),
    (["fit", "-c", "quickstart", "--trainer.val_check_interval", "0"], "must be more than 0"),
    (["fit", "-c", "quickstart", "--seed_everything=-1"], "must be in [0, 4294967295]"),
    (["fit", "-c", "quickstart", "--seed_everything", "9" * 20], "must be in [0, 4294967295]"),
    (["fit", "-c", "quickstart", "--seed_everything", "true"], "every run has a seed"),
    (["fit", "-c", "quickstart", "--trainer.devices=-5"], "trainer.devices='-5' is not a number"),
    (["fit", "-c", "quickstart", "--trainer.devices=1,1"], "trainer.devices="),
    (["fit", "-c", "quickstart", "--trainer.devices=0,1", CPU], "should be an int > 0"),
    (["fit", "-c", "quickstart", "--trainer.accumulate_grad_batches=0"], "must be at least 1"),
    (["fit", "-c", "quickstart", "--trainer.check_val_every_n_epoch=0"], "must be at least 1"),
    (["fit", "-c", "quickstart", "--trainer.gradient_clip_val=-1"], "must be at least 0"),
    (["fit", "-c", "quickstart", "--trainer.max_epochs=0"], "must be at least 1, or -1"),
    (["fit", "-c", "quickstart", "--trainer.max_time=00:00:00:00"], "is not a time above 0"),
    (["fit", "-c", "quickstart", "--trainer.limit_train_batches=0"], "limit_train_batches=0"),
    (["fit", "-c", "quickstart", "--trainer.limit_train_batches=1.5"], "must be in (0, 1]"),
    (["fit", "-c", "quickstart", "--trainer.limit_test_batches=0"], "--final_split none"),
    (["fit", "-c", "quickstart", "--trainer.log_every_n_steps=-1"], "must be at least 0"),
    (["fit", "-c", "quickstart", "--trainer.default_root_dir=x"], "a run is --run_dir"),
    (["fit", "-c", "quickstart", "--trainer.enable_checkpointing=false"], "cannot be used here"),
    (["fit", "-c", "quickstart", "--trainer.strategy=ddp_spawn", CPU], "choose ddp"),
    (["fit", "-c", "quickstart", "--trainer.accelerator=tpu"], "pip install -U 'torch_xla"),
    (["fit", "-c", "quickstart", "--optimizer", "SGD"], "--optimizer"),
    (["fit", "-c", "quickstart", "--model.optimizer.lr=-1"], "model.optimizer.lr=-1.0 must be"),
    (["fit", "-c", "quickstart", "--model.optimizer.lr=.nan"], "optimizer.lr=nan is not a finite"),
    (["fit", "-c", "quickstart", "--model.optimizer", "torch.optim.LBFGS"], "LBFGS doesn't"),
    (["fit", "-c", "quickstart", "--model.mixing.mixup=.inf"], "mixing.mixup=inf is not a finite"),
    (["fit", "-c", "quickstart", "--model.architecture.in_channels", "1"], "are read as RGB"),
    (["fit", "-c", "quickstart", "--model.architecture={name: x}"], "set model.name"),
    (["fit", "-c", "quickstart", "--model.architecture={num_classes: 2}"], "follows from the data"),
    (["fit", "-c", "quickstart", "--model.architecture.depth=true"], "must be a whole number"),
    (["fit", "-c", "quickstart", "--model.architecture.class_token=no way"], "true or false"),
    (["fit", "-c", "quickstart", "--model.architecture", "[" * 99 + "]" * 99], "levels deep"),
    (["fit", "-c", "quickstart", "--data.image_size=1000000"], "GiB are free"),
    (["fit", "-c", "quickstart", "--model.architecture.width=1000000"], "GiB are free"),
    (["fit", "-c", "quickstart", "--data.batch_size", "9" * 15], "GiB are free"),
    (["fit", "-c", "quickstart", "--data.root", ""], "data.root is empty"),
    (["fit", "-c", "quickstart", "--trainer.logger", "WandbLogger"], "pip install 'wandb"),
    (["fit", "-c", "quickstart", "--trainer.logger", "CSVLogger"], "needs a value for save_dir"),
    (["fit", "-c", "quickstart", "--trainer.callbacks=foo.Bar"], "there is no module 'foo'"),
    (["fit", "-c", "quickstart", "--trainer.callbacks=Nope"], "is not the name of a class"),
    (["fit", "-c", "quickstart", "--trainer=[1]"], "trainer=[1] holds no options"),
    (["fit", "-c", "quickstart", "--run_dir", "/dev/null/run"], "--run_dir /dev/null/run: cannot"),
    (
        [
            *("fit", "-c", "quickstart", "--data.sampling.balanced=true"),
            "--model.loss.class_weights=balanced",
        ],
        "would correct imbalance twice; use one: --data.sampling.balanced false, or",
    ),
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
    (
        "trainer:\n  callbacks:\n  - class_path: vit.training.callbacks.EMA\n"
        "    init_args: {decay: 3}",
        "trainer.callbacks: EMA: decay=3.0 must be in [0, 1)",
    ),
    (
        "data: {batch_size: 3}\nmodel: {}\ndata: {}",
        "line 3: 'data' is given twice, first in line 1",
    ),
    ("data: {batch_size: 3,\n batch_size: 4}", "line 2: 'batch_size' is given twice"),
    ("trainer: [1]", "mine.yaml: trainer: [1] holds no options"),
    ("data: 3", "mine.yaml: data: 3 holds no options"),
    ("task: [1]", "unknown task '[1]'; choose classification or masked_patches"),
    ("task: 3", "unknown task '3'"),
    ("trainer: " + "[" * 3000, "mine.yaml, line 1: nested more than 40 levels deep"),
    (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefgh")),
        "mine.yaml, line 5: stands for more than 100,000 values",
    ),
    ("data: {splits: {val_fraction: .nan}}", "data.splits.val_fraction=nan is not a finite number"),
    ("model: {schedule: {warmup_steps: null}}", "warmup_steps is null; give a value"),
    ("model: {schedule: {warmup_steps: -1}}", "warmup_steps=-1 must be at least 0"),
]


@pytest.mark.parametrize(("text", "part"), YAML_MISTAKES)
def test_a_mistake_in_a_recipe_is_one_line(vit: Vit, text: str, part: str) -> None:
    Path("mine.yaml").write_text(text)
    done = vit("fit", "-c", "quickstart", "-c", "mine.yaml")
    assert done.status == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert part in done.err


def test_a_recipe_that_is_a_pipe_is_refused_before_it_is_opened(vit: Vit) -> None:
    os.mkfifo("mine.yaml")
    done = vit("fit", "-c", "quickstart", "-c", "mine.yaml")
    assert (done.status, done.err) == (2, "vit: mine.yaml is not a recipe: it is a named pipe\n")


def test_options_are_refused_before_the_data_is_read(vit: Vit) -> None:
    """The data does not exist, which would be the message if it were looked for first."""
    for option in (
        "--model.optimizer.lr=-1",
        "--model.schedule.warmup_steps=-1",
        "--model.loss.head_bias=.inf",
        "--model.learning.layer_decay=2",
        "--data.splits.val_fraction=1",
        "--data.sampling.repeats=0",
        "--trainer.max_epochs=0",
        "--model.architecture.width=1000000",
        "--trainer.callbacks={class_path: vit.training.callbacks.EMA, init_args: {decay: 2}}",
    ):
        done = vit("fit", "-c", "quickstart", "--data.root=nowhere", option)
        assert done.status == 2 and "nowhere" not in done.err, option
        assert done.err.count("\n") == 1, done.err


def test_an_epoch_shorter_than_an_interval_is_one_line(vit: Vit) -> None:
    args = ("fit", "-c", "quickstart", CPU, "--trainer.max_epochs=1", "--data.batch_size=600")
    done = vit(*args, "--trainer.val_check_interval=9")
    assert done.status == 2
    assert "trainer.val_check_interval=9 is more than the 2 batches" in done.err.splitlines()[-1]
    done = vit(*args, "--trainer.limit_train_batches=0.1")
    assert done.status == 2
    assert "limit_train_batches=0.1 leaves no batch" in done.err.splitlines()[-1]


def test_a_run_without_its_configuration_is_named(vit: Vit) -> None:
    Path("r/checkpoints").mkdir(parents=True)
    Path("r/checkpoints/last.ckpt").write_bytes(b"x")
    done = vit("fit", "--run_dir", "r", "--ckpt_path", "last")
    assert done.status == 2
    assert done.err.startswith("vit: r has no config.yaml")


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
    done = vit(*args, "--data.loading.on_error=skip")
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
        [
            "-c",
            "r/config.yaml",
            "--ckpt_path",
            "r/checkpoints/last.ckpt",
            "--model.learning.layer_decay=0.5",
        ]
    )
    assert cli.model.layer_decay == 0.5
    assert cli.datamodule.batch_size == 100
