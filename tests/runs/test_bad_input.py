"""A user's mistakes: exit status 2, one line, before any training."""

from pathlib import Path

import pytest

from tests.command import TINY, Vit
from tests.extensions.formats.mirror import mirrored

CPU = "--trainer.accelerator=cpu"

# Arguments, and what the line names: the option, the value, the remedy.
COMMANDS = [
    ("fit --resume nosuch", ["--resume nosuch"]),
    ("validat runs/x", ["'validat'", "'validate'"]),
    ("fit -c finetun --data digits", ["finetun", "did you mean 'finetune'"]),
    ("test nowhere", ["nowhere"]),
    ("test nowhere --split tset", ["--split", "'tset'"]),
    ("classify nowhere x.jpg", ["x.jpg"]),
    ("classify nowhere", ["images", "vit classify --help"]),
    ("convert nowhere x --to tim", ["--to", "'tim'"]),
]
OPTIONS = [
    ("--model.optimzer.lr 3", ["model.optimzer.lr", "'model.optimizer'"]),
    ("--data.rot x", ["data.rot", "'data.root'"]),
    ("--trainer.max_epoch 3", ["--trainer.max_epoch=3;", "'trainer.max_epochs'"]),
    ("--model.loss.label_smothing 1", ["model.loss", "'label_smothing' is not accepted"]),
    ("--model.num_classes 3", ["unrecognized arguments: --model.num_classes"]),
    ("--model.architecture.widht 3", ["'width'"]),
    ("--model.architecture={name: x}", ["model.architecture.name=x", "model.name"]),
    ("--model.optimizer SGDD", ["model.optimizer", "SGDD"]),
    ("--model.optimizer torch.optim.LBFGS", ["model.optimizer", "LBFGS"]),
    ("--data.dataset digitz", ["'digitz'", "'digits'"]),
    ("--data.root=", ["root=''"]),
    ("--final_split tset", ["final_split", "['test', 'val', 'none']", "tset"]),
    ("--model.schedule.decay foo", ["model.schedule", "'cosine', 'linear', ", "foo"]),
    (
        "--model.loss.class_weights=x",
        ["model.loss", "class_weights", "['none', 'balanced']", "dict", "x"],
    ),
    ("--model.optimizer.lr high", ["model.optimizer.lr: Expected a float. Got value: high"]),
    ("--save_every=-1", ["save_every", "v>=0", "-1"]),
    ("--data.augment.extra nosuch.change", ["data.augment.extra", "No module named 'nosuch'"]),
    ("--data.augment.extra PIL.ImageOps.flop", ["extra", "module 'PIL.ImageOps' has no", "'flop'"]),
    ("--data.augment.extra PIL.Image.Image.tobytes", ["data.augment.extra returned bytes"]),
    ("--model.loss.function nosuch.loss", ["model.loss", "function", "No module named 'nosuch'"]),
    ("--model.loss.function torch.nn.L1Loss --model.loss.kind bce", ["--model.loss.kind auto"]),
    ("--epochs -1", ["--epochs -1 must be at least 1"]),
    ("--data.root . --data.dataset digits", ["data.root=. are two sets of images"]),
    ("--model.architecture.recompute maybe", ["recompute=maybe must be true or false"]),
    ("--seed_everything=-1", ["-1", "from 0 to 4294967295"]),
    ("--trainer.val_check_interval=00:00:00:01", ["is a time", "give a number of batches"]),
    ("--task [1]", ["task '[1]'"]),
    ("--trainer.strategy foo", ["strategy='foo'"]),
    ("--trainer.strategy=ddp_spawn", ["strategy=ddp_spawn", "ddp"]),
    ("--trainer.devices 0", ["devices='0'"]),
    ("--trainer.accelerator=tpu", ["torch_xla"]),
    ("--trainer.gradient_clip_val=-1", ["trainer.gradient_clip_val=-1"]),
    ("--model.name=vit_b16", ["--model.name", "width", "--model.architecture null"]),
    ("--trainer.logger WandbLogger", ["WandbLogger", "pip install"]),
    ("--trainer.callbacks=foo.Bar", ["trainer.callbacks", "foo.Bar"]),
    ("--run_dir /dev/null/run", ["run directory /dev/null/run"]),
    ("--resume weights.safetensors", ["--resume weights.safetensors", "--model.pretrained"]),
    (
        "--data.sampling.balanced=true --model.loss.class_weights=balanced",
        ["data.sampling.balanced", "model.loss.class_weights"],
    ),
]
MISTAKES = COMMANDS + [(f"fit -c quickstart {CPU} {options}", parts) for options, parts in OPTIONS]


def words(text: str) -> list[str]:
    """At spaces, but for those of a mapping."""
    start, brace, mapping = text.partition("={")
    *first, last = start.split(" ")
    return [*first, last + brace + mapping]


@pytest.mark.parametrize(("text", "parts"), MISTAKES)
def test_a_mistake_is_one_line(vit: Vit, text: str, parts: list[str]) -> None:
    done = vit(*words(text))
    *before, line = done.err.splitlines()
    assert done.status == 2 and line.startswith("vit: "), done.err
    assert all(part in line for part in parts), line
    assert not any(other.startswith("vit: ") or "Traceback" in other for other in before)
    assert not Path("runs").exists()


PHOTO_MISTAKES = [
    ("--data.batch_size=auto", ["data.batch_size=auto", "CPU"]),
    ("--data.batch_size=5 --data.global_batch=12", ["global_batch=12", "batch_size=5"]),
    ("--patience=0", ["patience", "0"]),
    ("--patience=3 --data.splits.val_fraction=0", ["patience=3 needs val/"]),
    ("--data.batch_size 1.5", ["data.batch_size: Expected a int", "1.5"]),
    ("--epochs 1.5", ["trainer.max_epochs: Expected a int Given value: 1.5"]),
    ("--cooldown 0", ["cooldown_steps=0 must be at least 1"]),
    ("--cooldown 3", ["cooldown_steps=3 has no effect on", "decay=constant or rsqrt"]),
    (
        "--cooldown 31 --steps 30 --model.schedule.decay constant",
        ["cooldown_steps=31 must be at most the 30 steps of the run"],
    ),
    ("--epochs 0", ["trainer.max_epochs=0 must be more than 0"]),
    ("--seed abc", ["--seed abc is not a number; type --seed 0"]),
    ("--seed_everything abc", ["seed_everything: Expected a int. Got value: abc"]),
    ("--lr -0.1", ["model.optimizer", "-0.1"]),
    ("--lr .inf", ["model.optimizer.lr=inf must be at least 0"]),
    ("--data.image_size [0,32]", ["image_size=0 must be a whole number above 0"]),
    ("--data.image_size 9", ["image_size=9x9 is not a multiple of patch_size=8; choose 8x8"]),
    ("--model.architecture=null --arch vit_b61", ["'vit_b61'; did you mean 'vit_b16'"]),
    ("--data.channels=3 --model.architecture.in_channels=4", ["in_channels=4"]),
    ("--data.channels=5 --data.augment.policy=vit.RandAugment", ["augment.policy changes RGB"]),
]
UNKNOWN_INPUTS = ("--data.inputs.mean=null", "--data.inputs.std=null")


@pytest.mark.parametrize(("text", "parts"), PHOTO_MISTAKES)
def test_a_contradiction_is_one_line(vit: Vit, photos: Path, text: str, parts: list[str]) -> None:
    fit = ("fit", "-c", "cifar10", *TINY, *UNKNOWN_INPUTS, "--data.root", photos)
    done = vit(*fit, *text.split())
    *_, line = done.err.splitlines()
    assert done.status == 2 and line.startswith("vit: "), done.err
    assert all(part in line for part in parts), line
    assert not Path("runs").exists()


YAML_MISTAKES = [
    ("data:\n  batchsize: 3", ["'data'", "'batchsize'", "'data.batch_size'"]),
    ("modle:\n  name: vit_ti16", ["modle.name", "'model.name'"]),
    ("data: {image_size: 8\ntrainer: [", ["mine.yaml, line 2"]),
    ("- a\n- b", ["mine.yaml"]),
    ("model: {schedule: {decay: cosin}}", ["model.schedule", "cosin"]),
    (
        "model: {optimizer: {class_path: torch.optim.SGD, init_args: {lr: 1, momentun: 0.9}}}",
        ["model.optimizer", "'momentun'"],
    ),
    ("trainer: {callbacks: [{class_path: vit.EMAA}]}", ["EMAA"]),
    ("trainer: [1]", ["mine.yaml", "trainer=[1] is not a mapping"]),
    ("trainer: {callbacks: [{class_path: EMA, init_args: 3}]}", ["trainer.callbacks", "init_args"]),
    ("model: {architecture: 3}", ["mine.yaml", "architecture=3 is not a mapping"]),
    ("trainer: other.yaml", ["trainer", "other.yaml"]),
    ("model: {schedule: {warmup_steps: null}}", ["warmup_steps=None"]),
]


@pytest.mark.parametrize(("text", "parts"), YAML_MISTAKES)
def test_a_mistake_in_a_recipe_is_one_line(vit: Vit, text: str, parts: list[str]) -> None:
    Path("mine.yaml").write_text(text)
    done = vit("fit", "-c", "quickstart", "-c", "mine.yaml", "--trainer.precision=32-true")
    assert done.status == 2 and len(done.err.splitlines()) == 1, done.err
    assert all(part in done.err for part in parts), done.err


@pytest.mark.parametrize(
    "option",
    [
        "--model.learning.layer_decay=2",
        "--data.splits.val_fraction=1",
        "--trainer.max_epochs=0",
        "--trainer.callbacks={class_path: vit.EMA, init_args: {decay: 2}}",
    ],
)
def test_options_are_refused_before_weights_are_fetched_and_data_is_read(
    vit: Vit, option: str
) -> None:
    Path("empty").mkdir()
    done = vit("fit", CPU, "--data.root=empty", "--pretrained=hf://me/none", option)
    assert done.status == 2 and "me/none" not in done.err and "empty" not in done.err


def test_an_epoch_shorter_than_an_interval_is_one_line(vit: Vit) -> None:
    args = ("fit", "-c", "quickstart", CPU, "--trainer.max_epochs=1", "--data.batch_size=600")
    done = vit(*args, "--trainer.val_check_interval=9")
    assert done.status == 2
    assert "trainer.val_check_interval=9 is more than the 2 batches" in done.err.splitlines()[-1]
    done = vit(*args, "--trainer.limit_train_batches=0.1")
    assert done.status == 2
    assert "limit_train_batches" in done.err.splitlines()[-1]


def test_bad_images_and_a_wrong_root_end_a_fit_before_weights_are_fetched(
    vit: Vit, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        (photos / "red" / f"{number:02}.jpg").write_bytes(b"")
    Path("wrong").mkdir()
    with mirrored(tmp_path / "cache", monkeypatch) as server:
        done = vit("fit", "--data", photos, CPU)
        *_, line = done.err.splitlines()
        assert done.status == 2 and "00.jpg: the file is empty" in line and "01.jpg: " in line
        assert "`vit data check '" in line and "--fix" in line
        assert line.endswith("--data.loading.on_error skip leaves such images out")
        done = vit("fit", "--data", "wrong", CPU)
        assert done.status == 2 and "wrong" in done.err.splitlines()[-1]
        assert not server.asked
        vit("fit", "--data", photos, CPU, "--data.loading.on_error=skip")
        assert server.asked
    assert not Path("runs").exists()


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
