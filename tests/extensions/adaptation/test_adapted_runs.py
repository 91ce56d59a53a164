"""Runs with LoRA or a teacher: continued exactly, read and scored."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.command import TINY, Vit, saved
from tests.killing import in_child, killed_at
from vit.cli.main import main
from vit.recipes import read_options
from vit.training.image_classifier import ImageClassifier
from vit.weights.archives import read_checkpoint

TEACHER = ("--model.loss.teacher=vit.Distillation", "--model.loss.teacher.weights=weights")
WAYS = {
    "lora": (*TINY[1:], "--model.architecture=null", "--pretrained=weights", "--model.lora=2"),
    "features": (*TINY, *TEACHER, "--model.loss.teacher.features=cosine"),
    "cached": (*TINY, *TEACHER, "--model.mixing.mixup=1", "--teacher-cache=1"),
    "distilled": (TINY[0].replace("}", ", distillation_token: true}"), *TINY[1:], *TEACHER),
}


@pytest.fixture
def command(vit: Vit, photos: Path) -> tuple[str, ...]:
    """The words of a fit of six steps in two epochs, each of which is saved."""
    saved(Path("weights"))
    return ("fit", "-c", "cifar10", f"--data={photos}", "--steps=6", "--save_every=0")


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(
    way: str, vit: Vit, command: tuple[str, ...]
) -> None:
    words = [*command, *WAYS[way]]
    assert vit(*words, "--run_dir=whole").status == 0

    def killed() -> int:
        killed_at(ImageClassifier, "training_loss", 5)
        return main([*words, "--run_dir=killed"])

    assert in_child(killed) < 0
    assert 0 < read_checkpoint(Path("killed/checkpoints/last.ckpt"))["global_step"] < 5
    done = vit("fit", "--run_dir=killed")
    assert done.status == 0, done.err
    last = [read_checkpoint(Path(run, "checkpoints/last.ckpt")) for run in ("whole", "killed")]
    whole, again = (checkpoint["state_dict"] for checkpoint in last)
    assert whole.keys() == again.keys()
    assert all(whole[name].equal(again[name]) for name in whole)
    assert any("lora_a" in name for name in whole) == (way == "lora")
    assert ("taught.weight" in whole) == (way == "features")
    scores = [Path(run, "predictions.csv").read_text() for run in ("whole", "killed")]
    assert scores[0] == scores[1]
    assert vit("test", "killed").status == 0
    assert not any("taught" in name for name in load_file("killed/model/model.safetensors"))
    assert not Path("killed/teacher_cache.bin").exists()


def test_a_short_name_writes_its_kind_out(vit: Vit, command: tuple[str, ...]) -> None:
    assert vit(*command, *WAYS["lora"], "--run_dir=a").status == 0
    model = read_options(Path("a/config.yaml"))["model"]
    assert model["adaptation"] == {"class_path": "vit.LoRA", "init_args": {"rank": 2}}
    done = vit(*command, *TINY, "--model.lora=null", "--run_dir=b")
    assert done.status == 0, done.err
    assert read_options(Path("b/config.yaml"))["model"]["adaptation"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model.adaptation=vit.Nothing",), "vit has no attribute 'Nothing'"),
        (("--model.adaptation=vit.EMA",), "not correspond to a subclass of Adaptation"),
        (("--model.lora=two",), "model.adaptation.rank: Expected a int. Got value: two"),
        (("--model.lora",), "--model.lora needs a value"),
        (
            ("--model.lora=2", "--model.learning.freeze_backbone=true"),
            "model.adaptation needs model.pretrained, and no freeze_backbone",
        ),
        (("--model.loss.teacher=vit.Distillation",), "--model.loss.teacher.weights WEIGHTS"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], message: str, vit: Vit, command: tuple[str, ...]
) -> None:
    done = vit(*command, *TINY, "--run_dir=a", *words)
    assert done.status == 2 and message in done.err.splitlines()[-1], done.err
    assert not Path("a").exists()
