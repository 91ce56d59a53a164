"""`vit selftrain`: its loop, how it goes on, and what it refuses."""

import json
import os
import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit as package
from tests.command import CLASSES, Vit, saved
from tests.killing import in_child, killed_at
from vit.cli.main import main
from vit.data.trained_on import TrainedOn
from vit.errors import UserError
from vit.extensions.transfer.pseudo import Answers
from vit.runs.options import Options
from vit.training.image_classifier import ImageClassifier

SMALL = """\
# Small.
data: {batch_size: 8, image_size: 16, augment: {crop: pad}, loading: {num_workers: 0}}
model:
  architecture: {patch_size: 8, width: 16, depth: 1, mlp_dim: 32, num_heads: 1}
  optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.01}}
trainer: {precision: 32-true, accelerator: cpu}
"""
FIT = ("-c", "small.yaml", "--data", "my photos", "--steps=6")
NOISE = (
    "--data.augment.policy=vit.RandAugment",
    "--trainer.check_val_every_n_epoch=null",
    "--trainer.val_check_interval=2",
)
LOOP = ("selftrain", *FIT, "--unlabelled=more", "--confidence=0.1", "--ratio=1", "--out=out")


@pytest.fixture(autouse=True)
def more(vit: Vit, photos: Path) -> None:
    """`more`, fifteen pictures in three colours, one of them in a folder below."""
    Path("small.yaml").write_text(SMALL)
    Path("deep.yaml").write_text(
        SMALL.replace("depth: 1", "depth: 2, drop_path: 0.5, dropout: 0.1")
    )
    random = np.random.default_rng(1)
    Path("more/below").mkdir(parents=True)
    for i in range(15):
        pixels = random.integers(0, 90, (24, 24, 3))
        pixels[..., i % 3] += 150
        name = "below/é.png" if i == 14 else f"{i:02}.png"
        Image.fromarray(pixels.astype("uint8")).save(Path("more", name))


KILLS = [
    (ImageClassifier, "training_step", 3),  # of the teacher
    (Answers, "write", 1),
    (ImageClassifier, "training_step", 4),  # of the student
]


def weights(run: str) -> dict[str, torch.Tensor]:
    return torch.load(Path(run, "checkpoints/last.ckpt"), weights_only=True)["state_dict"]


def equal(first: str, second: str) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_teachers_answer_and_students_teach(vit: Vit) -> None:
    sizes = "name: bit_r50x1\n  architecture: {depths: [1]}"
    Path("bit.yaml").write_text(re.sub("architecture: .*", sizes, SMALL))
    students = ("--students=bit.yaml,deep.yaml", "--per-class=9")
    args = (*LOOP, *NOISE, *students, "--iterations=2", "--json")
    done = vit(*args)
    assert done.status == 0, done.err
    rows = json.loads(done.out)
    assert json.loads(Path("out/selftrain.json").read_text())["rows"] == rows
    assert [row["model"] for row in rows] == ["teacher", "student 1", "student 2"]
    assert len({row["parameters"] for row in rows}) == 3
    for number, (teacher, row) in enumerate(pairwise(rows), start=1):
        answers = Answers.read(f"out/answers_{number}.safetensors")
        assert sorted(answers.names) == sorted(
            os.path.relpath(Path(place, name), "more")
            for place, _, names in os.walk("more")
            for name in names
        )
        taught = package.load(teacher["run"])
        asked = taught.probabilities([Path("more", name) for name in answers.names]).numpy()
        np.testing.assert_allclose(answers.values, asked, atol=1e-3)
        assert answers.classes == taught.classes
        assert row["images"] == 9 * len({*answers.values.argmax(1)})
        kept = answers.values[answers.chosen(0.1, 9)]
        assert row["confidence"] == pytest.approx(kept.max(1).astype(float).mean())
        summary = json.loads(Path(row["run"], "summary.json").read_text())
        assert row["test"] == summary["metrics"]["test/acc1"]
        assert row["val"] == summary["metrics"]["val/acc1"]
    again = vit(*args)
    assert again.out == done.out and "parameters" not in again.err  # nothing was trained
    alone = vit("fit", "-c", "out/student_2/config.yaml", "--run_dir=alone")
    assert alone.status == 0 and equal("alone", "out/student_2"), alone.err
    Path("out/answers_2.safetensors").unlink()
    assert vit("test", "out/student_2").status == 0  # which learns nothing


def test_a_loop_that_is_killed_ends_in_the_same_weights(vit: Vit) -> None:
    args = (*LOOP, *NOISE, "--students=deep.yaml", "--iterations=1", "--save_every=0")
    assert vit(*args).status == 0
    os.rename("out", "whole")

    def attempt(owner: Any, name: str, count: int) -> int:
        killed_at(owner, name, count)
        return main(list(args))

    for kill in KILLS:
        assert in_child(lambda kill=kill: attempt(*kill)) == -signal.SIGKILL, kill
    done = vit(*args)
    assert done.status == 0 and "resuming" in done.err, done.err
    for run in ("teacher", "student_1"):
        assert equal(f"out/{run}", f"whole/{run}")
    files = [Path(place, "answers_1.safetensors") for place in ("out", "whole")]
    assert len({Answers.read(file).digest for file in files}) == 1


def test_a_given_teacher_is_scored_and_may_be_of_another_kind(vit: Vit) -> None:
    licence = {"part": "weights", "source": "base", "licence": "cc-by-nc-4.0"}
    # Classes in another order, other sizes, and a licence that its student has from it.
    saved(Path("given"), CLASSES[::-1], extra={"licences": [licence]})
    done = vit(*LOOP, "--teacher=given", "--iterations=1", "--json")
    assert done.status == 0, done.err
    teacher, student = json.loads(done.out)
    data = Options([*FIT]).data
    model = package.load("given")
    for split in ("val", "test"):
        images = data.image_set(split)
        best = model.probabilities([*images.items]).argmax(1).tolist()
        hits = [
            model.classes[k] == data.classes[i] for k, i in zip(best, images.labels, strict=True)
        ]
        assert teacher[split] == pytest.approx(np.mean(hits))
    assert teacher["parameters"] == sum(p.numel() for p in model.model.parameters())
    answers = Answers.read("out/answers_1.safetensors")
    assert answers.classes == data.classes == CLASSES
    asked = model.probabilities([Path("more", name) for name in answers.names]).numpy()
    np.testing.assert_allclose(answers.values, asked[:, ::-1], atol=1e-3)
    assert student["test"] is not None
    extra = json.loads(Path("out/student_1/model/config.json").read_text())["extra"]
    assert extra["licences"] == [{**licence, "part": "teacher's weights"}] and extra["recipe"]
    assert package.load("out/student_1").classes == CLASSES


def test_answers_are_not_taken_for_those_of_another_teacher(vit: Vit) -> None:
    saved(Path("given"))
    args = (*LOOP, "--teacher=given", "--iterations=1")
    assert vit(*args).status == 0
    file = Path("out/answers_1.safetensors")
    answers = Answers.read(file)
    Answers(answers.values, answers.names, answers.classes, "another").write(file)
    done = vit(*args)
    assert done.status == 2 and "holds the answers of another teacher" in done.err
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "does not hold a teacher's answers" in vit(*args).err
    done = vit(*args, "--confidence=0.2")
    assert done.status == 2 and "pseudo.confidence (was 0.1, is 0.2)" in done.err
    file.unlink()
    assert vit(*args).status == 0


def test_other_weights_and_other_recipes_of_students_are_refused(
    vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(arguments: list[str], folder: Path) -> None:
        raise UserError("nothing is trained here")

    monkeypatch.setattr("vit.extensions.transfer.selftrain._trained", stop)
    saved(Path("start"))
    size = "--model.architecture=null"
    args = (*LOOP, "--model.pretrained=start", size, "--iterations=1", "--students=student.yaml")
    Path("student.yaml").write_text("model: {loss: {label_smoothing: 0.1}}\n")
    for _ in range(2):
        assert "nothing is trained here" in vit(*args).err
    Path("student.yaml").write_text("model: {loss: {label_smoothing: 0.2}}\n")
    done = vit(*args)
    assert done.status == 2 and "label_smoothing (was 0.1, is 0.2)" in done.err
    Path("student.yaml").write_text("model: {loss: {label_smoothing: 0.1}}\n")
    saved(Path("start"), seed=1)
    done = vit(*args)
    assert done.status == 2 and "options.weights.model.pretrained (was " in done.err
    assert not Path("out/teacher").exists()


def copy_of_a_test_image() -> None:
    image = Options([*FIT]).data.image_set("test").items[0]
    Image.open(image).save("more/copy.png")


MISTAKES = [
    (["--unlabelled=empty"], ["no images in", "empty"]),
    (["--confidence=0.99", "--teacher=unsure"], ["confidence=0.99 leaves none of 15", "lower"]),
    (["--confidence=1.5"], ["pseudo.confidence=1.5 must be in [0, 1)"]),
    (["--ratio=-1"], ["pseudo.ratio=-1.0 must be at least 0"]),
    (["--per-class=0"], ["--per-class", "0 is not a whole number"]),
    (["--teacher=other"], ["the teacher other has other classes", "'green'"]),
    (["--students=vit_ti61"], ["vit_ti61", "did you mean"]),
    (["--students=vit_ti16,vit_ti16,vit_ti16,vit_ti16"], ["--students has 4 names"]),
    (["--students=bit_r50x1"], ["student 1 bit_r50x1", "or name a recipe in --students"]),
    (["--students=seed.yaml"], ["--students seed.yaml changes the labelled images"]),
    (["--students=probe"], ["student 1 probe", "has no effect"]),
    (["--run_dir=x"], ["--run_dir", "sets it for each run"]),
    (["--data.pseudo.ratio=1"], ["--data.pseudo.ratio", "sets it for each run"]),
    (["--model.loss.kind=bce"], ["model.loss.kind=bce", "--hard"]),
    (["--task=masked_patches"], ["recipe that classifies"]),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_a_mistake_is_one_line_before_training(
    vit: Vit, monkeypatch: pytest.MonkeyPatch, options: list[str], words: list[str]
) -> None:
    Path("empty").mkdir()
    Path("seed.yaml").write_text(f"{SMALL}seed_everything: 5\n")
    saved(Path("given"))
    saved(Path("unsure"), extra={"temperature": 99.0})
    saved(Path("other"), ["blue", "green", "red"])
    monkeypatch.setattr("vit.extensions.transfer.transfer.fit", None)
    args = [arg for arg in LOOP if not options[0].startswith(arg.split("=")[0] + "=")]
    if options[0].startswith("--task"):
        args = ["selftrain", "-c", "pretrain/masked_patches_cifar10", *args[5:]]
        options = []
    done = vit(*args, *options)
    assert done.status == 2
    lines = [line for line in done.err.splitlines() if line.startswith("vit: ")]
    assert len(lines) == 1 and all(word in lines[0] for word in words), done.err


def test_a_teacher_that_learned_images_of_test_is_refused(vit: Vit) -> None:
    # A recipe for a data set of the catalogue, as cifar10/noisy_student: --data is another.
    Path("small.yaml").write_text(SMALL.replace("data: {", "data: {dataset: cifar10, "))
    assert vit("fit", *FIT, "--seed=5", "--run_dir=learned").status == 0
    args = [*LOOP, "--iterations=1", "--ratio=0"]
    done = vit(*args, "--teacher=learned")
    assert done.status == 2 and "the teacher learned held out other images than" in done.err
    assert vit("fit", *FIT, "--run_dir=same").status == 0
    assert vit(*args, "--teacher=same").status == 0
    os.rename("my photos", "elsewhere")  # nothing is known of another folder
    args[args.index("my photos")] = "elsewhere"
    assert vit(*args, "--teacher=learned", "--out=other").status == 0
    records = [Path(run, "model/trained_on") for run in ("learned", "other/student_1", "same")]
    teacher, student, same = (set(TrainedOn.read(record).all) for record in records)
    assert teacher <= student and not teacher <= same


def test_an_unreadable_unlabelled_image_is_reported_before_training(vit: Vit) -> None:
    Path("more/broken.png").write_bytes(b"no picture")
    done = vit(*LOOP, "--iterations=1")
    assert done.status == 2 and "broken.png" in done.err.splitlines()[-1]
    assert not Path("out/teacher").exists()
    done = vit(*LOOP, "--iterations=1", "--data.loading.on_error=skip", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)[1]["images"] <= 15
    Path("more/later.png").write_bytes(b"no picture")
    done = vit(*LOOP, "--iterations=1", "--data.loading.on_error=skip")
    assert done.status == 2 and "images.unlabelled (was" in done.err


def test_images_of_test_among_the_unlabelled_are_refused(vit: Vit) -> None:
    copy_of_a_test_image()
    done = vit(*LOOP)
    assert done.status == 2 and "1 of 16 unlabelled images are also in val or test" in done.err
    assert "copy.png" in done.err and not Path("out/teacher").exists()
