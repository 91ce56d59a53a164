"""A run that starts from another one: its test holds no image that the weights have seen."""

import contextlib
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.command import Vit, saved, table
from vit.cli.main import main
from vit.data.trained_on import TrainedOn
from vit.extensions.formats import hub, publish
from vit.weights.names import record_of

SMALL = ("--data.batch_size=16", "--data.loading.num_workers=0", "--trainer.precision=32-true")


@pytest.fixture(autouse=True)
def encoder(tmp_path: Path) -> None:
    saved(tmp_path / "encoder", classes=None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, its probe runs/a and runs/b, which is tuned from that."""
    home = tmp_path_factory.mktemp("made")
    with contextlib.chdir(home):
        saved(home / "encoder", classes=None)
        pictures(home / "data", ("a", "b", "c"), 20)
        probe = ("-c", "probe", "--pretrained=encoder", "--run_dir=runs/a", "--seed=3")
        assert main(["fit", "--data=data", *probe, *SMALL]) == 0
        steps = ("--pretrained=runs/a", "--run_dir=runs/b", "--steps=2")
        assert main(["fit", "--data=data", *steps, *SMALL]) == 0
    return home


@pytest.fixture
def home(made: Path, vit: Vit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, in which the test is; the runs are on the first one's data."""
    home = Path(shutil.copytree(made, tmp_path / "home"))
    monkeypatch.chdir(home)
    return made / "data"


def pictures(root: Path, folders: tuple[str, ...], count: int, first: int = 0) -> Path:
    """`count` pictures in each folder, all of them different."""
    for number, name in enumerate(folders):
        (root / name).mkdir(parents=True, exist_ok=True)
        for at in range(first, first + count):
            random = np.random.default_rng([number, at])
            pixels = random.integers(0, 90, (18, 20, 3))
            pixels[..., number % 3] += 150
            Image.fromarray(pixels.astype("uint8")).save(root / name / f"{at:03}.png")
    return root


def printed(out: str) -> list[list[str]]:
    """The words of each command that is printed at the end of a fit."""
    lines = out.partition("\nnext:\n")[2].splitlines()
    commands = [shlex.split(line) for line in lines]
    assert commands and all(words[0] == "vit" for words in commands)
    return commands


def names(vit: Vit, run: str, split: str) -> set[str]:
    """The images of a split, by the paths in a file of predictions."""
    done = vit("predict", run, "--split", split, "--out", "predictions.csv")
    assert done.status == 0, done.err
    return {Path(row["image"]).as_posix() for row in table("predictions.csv")}


def in_a_list(root: Path) -> Path:
    pictures(root, ("a", "b", "c"), 30)
    files = sorted(root.rglob("*.png"))
    rows = [f"{p.relative_to(root)},{p.parent.name};any" for p in files]
    (root / "list.csv").write_text("\n".join(["where,what", *rows]) + "\n")
    return root / "list.csv"


def in_groups(root: Path) -> Path:
    """Ten patients in each class, of three pictures each."""
    pictures(root, ("a", "b", "c"), 30)
    files = sorted(root.rglob("*.png"))
    rows = [
        f"{p.relative_to(root)},{p.parent.name},{p.parent.name}{int(p.stem) // 3}" for p in files
    ]
    (root / "list.csv").write_text("\n".join(["path,label,patient", *rows]) + "\n")
    return root / "list.csv"


SETS: dict[str, tuple[Any, list[str]]] = {
    "tree": (
        lambda root: pictures(root, ("pet/cat", "pet/dog", "wild/fox"), 30),
        shlex.split("--data.labels tree --data.splits.seed 7 --data.splits.test_fraction 0.3"),
    ),
    "columns": (
        in_a_list,
        shlex.split(
            "--data.columns.path where --data.columns.label what --data.label_separator ';' "
            "--data.loading.on_error skip"
        ),
    ),
    "groups": (in_groups, ["--data.columns.group", "patient", "--seed", "5"]),
    "shards": (lambda root: pictures(root, ("a", "b", "c"), 30), ["--seed", "2"]),
}


@pytest.mark.parametrize("name", SETS)
def test_each_command_that_a_probe_prints_works_and_tests_on_images_it_did_not_learn(
    vit: Vit, tmp_path: Path, name: str
) -> None:
    make, options = SETS[name]
    data = make(tmp_path / "my data")
    if name == "shards":
        assert vit("data", "pack", data, tmp_path / "my shards").status == 0
        data = tmp_path / "my shards"
    start = ("--data", data, "--pretrained", "encoder", "--run_dir", "runs/a")
    first = vit("fit", "-c", "probe", *start, *options, *SMALL)
    assert first.status == 0, first.err
    learned = names(vit, "runs/a", "train")
    [*others, on] = printed(first.out)
    for words in others:
        done = vit(*words[1:])
        assert done.status == 0, (words, done.err)
    second = vit(*on[1:], "--steps", "2", "--run_dir", "runs/b")
    assert second.status == 0, (on, second.err)
    tested = names(vit, "runs/b", "test")
    assert tested and not tested & learned
    runs = [json.loads(Path(run, "summary.json").read_text()) for run in ("runs/a", "runs/b")]
    assert runs[0]["splits"] == runs[1]["splits"]  # images, labels, and names of classes
    for words in printed(second.out):
        done = vit(*words[1:])
        assert done.status == 0, (words, done.err)
    again = vit("test", "runs/b")
    assert again.status == 0 and "note" not in again.err


def probed(vit: Vit, data: Path, run: str, *options: str) -> None:
    start = ("--data", data, "--pretrained", "encoder", "--run_dir", run)
    done = vit("fit", "-c", "probe", *start, *options, *SMALL)
    assert done.status == 0, done.err


def tuned(vit: Vit, data: Path, weights: str, run: str, *options: str) -> Any:
    start = ("--data", data, "--pretrained", weights, "--run_dir", run, "--steps", "2")
    return vit("fit", *start, *options, *SMALL)


def test_another_seed_and_new_images_leave_test_to_images_that_were_not_learned(
    vit: Vit, tmp_path: Path
) -> None:
    data = pictures(tmp_path / "data", ("a", "b", "c"), 30)
    probed(vit, data, "runs/a", "--seed=3")
    learned = names(vit, "runs/a", "train")
    pictures(data, ("a", "b", "c"), 10, first=30)
    moved = tmp_path / "elsewhere"
    data.rename(moved)  # no option is followed there
    done = tuned(vit, moved, "runs/a", "runs/b", "--data.splits.val_fraction=0.1", "--seed=4")
    assert done.status == 0, done.err
    assert "val and test are cut from the 39 of 120 images that runs/a was not trained" in done.err
    held_out = names(vit, "runs/b", "test") | names(vit, "runs/b", "val")
    assert len(held_out) == 24 and not held_out & learned
    third = tuned(vit, moved, "runs/b/model", "runs/c")  # which learned what both have learned
    assert third.status == 0 and "39 of 120" not in third.err
    learned |= names(vit, "runs/b", "train")
    assert not names(vit, "runs/c", "test") & learned
    note = vit("test", "runs/c", "--data", shutil.copytree(moved, tmp_path / "copy")).err
    known = len(learned | names(vit, "runs/c", "train"))
    assert f"{known} of 120 test images were in the training of runs/c" in note


def test_of_weights_that_have_seen_all_images_none_is_held_out(vit: Vit, tmp_path: Path) -> None:
    data = pictures(tmp_path / "data", ("a", "b"), 12)
    probed(vit, data, "runs/a", "--data.splits.test_fraction=0.05")
    shares = ("--data.splits.test_fraction=0.25", "--data.splits.val_fraction=0.25")
    done = tuned(vit, data, "runs/a", "runs/b", *shares)
    assert done.status == 0, done.err
    assert "the 2 of 24 images that runs/a was not trained on; for a score" in done.err
    assert len(names(vit, "runs/b", "test")) == 2
    done = tuned(vit, data, "runs/b", "runs/c", "--data.splits.seen=allow", *shares)
    assert done.status == 0, done.err
    assert len(names(vit, "runs/c", "test")) == len(names(vit, "runs/c", "val")) == 6
    assert re.search(r"note: \d of 6 val images were in the training of runs/b; \d of 6", done.err)


def test_seen_images_in_splits_that_are_given_are_refused_or_allowed(
    vit: Vit, tmp_path: Path
) -> None:
    data = pictures(tmp_path / "data", ("a", "b"), 20)
    probed(vit, data, "runs/a", "--data.splits.test_fraction=0.5")
    given = tmp_path / "given"
    for at, name in enumerate(sorted(names(vit, "runs/a", "train"))):
        split = "test" if at % 2 else "train"
        (given / split / name).parent.mkdir(parents=True, exist_ok=True)
        (given / split / name).write_bytes((data / name).read_bytes())
    refused = tuned(vit, given, "runs/a", "runs/b")
    assert refused.status == 2 and not Path("runs/b").exists()
    assert refused.err.splitlines()[-1].startswith(
        "vit: 10 of 10 test images were in the training of runs/a; give others, or"
    )
    allowed = tuned(vit, given, "runs/a", "runs/b", "--data.splits.seen", "allow")
    assert allowed.status == 0 and "note: 10 of 10 test images were in" in allowed.err
    assert "note: 10 of 10 test images" in vit("test", "runs/b").err


def test_images_of_train_that_are_in_test_too_are_counted_at_the_start(
    vit: Vit, tmp_path: Path
) -> None:
    train = pictures(tmp_path / "data" / "train", ("a", "b"), 20)
    test = pictures(tmp_path / "data" / "test", ("a", "b"), 5, first=20)
    (test / "a" / "020.png").write_bytes((train / "a" / "003.png").read_bytes())
    (test / "b" / "link.png").symlink_to(train / "b" / "004.png")
    start = ("--data", tmp_path / "data", "--pretrained", "encoder", "--run_dir", "runs/a")
    done = vit("fit", "-c", "probe", *start, "--data.splits.val_fraction=0", *SMALL)
    assert done.status == 0, done.err
    assert "note: 2 of 11 test images were in the training of this run" in done.err
    assert "2 of 11 test images were in the training of runs/a" in vit("test", "runs/a").err


def test_a_student_has_learned_what_its_teacher_has(vit: Vit, home: Path) -> None:
    more = pictures(Path("more"), ("a", "b", "c"), 12, first=100)
    teacher = ("--model.loss.teacher=vit.Distillation", "--model.loss.teacher.weights=runs/a")
    done = tuned(vit, more, "encoder", "runs/s", "--data.image_size=32", *teacher)
    assert done.status == 0, done.err
    learned = len(names(vit, "runs/a", "train"))
    counted = f"{learned} of 60 test images were in the training of runs/s"
    assert counted in vit("test", "runs/s", "--data", home).err


def test_images_that_were_replaced_since_a_run_began_stay_in_its_record(
    vit: Vit, home: Path
) -> None:
    data = Path(shutil.copytree(home, "mine"))
    assert tuned(vit, data, "encoder", "runs/c").status == 0
    before = TrainedOn.read(Path("runs/c/model/trained_on")).here
    for path in data.rglob("*.png"):
        path.write_bytes(path.read_bytes() + b"\0")
    done = vit("fit", "--run_dir", "runs/c", "--steps", "4")
    assert done.status == 0, done.err
    after = TrainedOn.read(Path("runs/c/model/trained_on"))
    assert {*before} < {*after.here} and not len(after.before)


def test_a_run_is_not_scored_on_fewer_classes_than_it_has(vit: Vit, home: Path) -> None:
    data = Path(shutil.copytree(home, "mine"))
    probed(vit, data, "runs/c")
    (data / "c").rename("c")
    for words in (("test",), ("test", "--split=train"), ("predict", "--out=p.csv")):
        done = vit(words[0], "runs/c", *words[1:])
        assert done.status == 2, done.out
        assert done.err.splitlines()[-1] == (
            "vit: the data of runs/c has other classes now: 'c'; give --data"
        )
    given = vit("test", "runs/c", "--data", shutil.copytree(data, "copy"))
    assert given.status == 0 and "of 40 images" in given.out


def test_the_record_goes_along_with_the_weights_and_readers_count_by_it(
    vit: Vit, home: Path
) -> None:
    learned = len(names(vit, "runs/a", "train"))
    Path("data").rename("copy")
    assert vit("convert", "runs/b", "native", "--to", "native").status == 0
    assert "trained_on" in publish._DESCRIPTIONS and "trained_on" in hub._DESCRIPTIONS
    for weights in ("runs/b", "runs/b/model", "runs/b/checkpoints/last.ckpt", "native"):
        record = record_of(weights)
        assert record is not None, weights
        assert len(TrainedOn.read(record).all) == learned
    assert vit("convert", "encoder", "native", "--to", "native", "--overwrite").status == 0
    assert record_of("native") is None  # of the model before
    counted = "of 60 {} images were in the training of {}"
    for command, text in {
        ("test", "runs/b", "--data", "copy"): counted.format("test", "runs/b"),
        ("test", "runs/a", "runs/b", "--data", "copy"): counted.format("test", "runs/a"),
        (
            "robustness",
            "runs/b",
            "--data",
            "copy",
            "--limit=2",
            "--num-workers=0",
        ): "were in the training",
        ("export", "runs/b", "m.pt2", "--check", "copy"): counted.format("--check", "runs/b"),
        ("knn", "runs/b", "--data", "copy", "--no-cache"): "test images were in the training",
        ("fewshot", "runs/b", "--data", "copy", "--no-cache"): "test images were in the training",
        ("probe", "runs/b", "--data", "copy", "--no-cache"): "test images were in the training",
    }.items():
        done = vit(*command)
        assert done.status == 0 and text in done.err, (command, done.err)
    record = Path("runs/b/model/trained_on")
    record.write_bytes(record.read_bytes()[:-8])
    done = vit("test", "runs/b", "--data", "copy")
    assert done.status == 2 and done.err.splitlines()[-1].startswith(
        f"vit: {record} lists no images"
    )


def test_commands_of_other_recipes_and_of_a_named_set_work_too(vit: Vit, home: Path) -> None:
    done = tuned(vit, home, "runs/b", "runs/c", "-c", "lora", "--model.lora=2")
    assert done.status == 0, done.err
    for words in printed(done.out):
        again = vit(*words[1:])
        assert again.status == 0, (words, again.err)
    assert not names(vit, "runs/c", "test") & names(vit, "runs/a", "train")
    start = ("--data", "digits", "--data.splits.val_fraction=0.1", "--pretrained", "encoder")
    start = (*start, *SMALL, "--data.batch_size=256")
    first = vit("fit", "-c", "probe", *start, "--run_dir=runs/d", "--seed=5")
    again, on = printed(first.out)
    assert again == ["vit", "test", "runs/d"] and on[2:4] == ["--data", "digits"]
    second = vit(*on[1:], "--steps=2", "--run_dir=runs/e", "--seed=6")
    assert second.status == 0, second.err
    assert "as in runs/d, whose images these are: data.splits.seed 5" in second.err
    held_out = names(vit, "runs/e", "val")
    assert held_out and held_out == names(vit, "runs/d", "val")


def test_options_of_somebody_elses_run_are_plain_values(vit: Vit, home: Path) -> None:
    config, text = Path("runs/a/config.yaml"), Path("runs/a/config.yaml").read_text()
    other = "columns:\n    class_path: tests.command.Result\n    init_args: {path: x}"
    changed = re.sub(r"columns:\n(    \w+: \w+\n)+", f"{other}\n", text)
    assert changed != text
    config.write_text(changed)
    done = tuned(vit, home, "runs/a", "runs/c")
    assert done.status == 0, done.err
    recorded = Path("runs/c/config.yaml").read_text()
    assert "path: path" in recorded and "tests.command" not in recorded


def test_a_run_that_is_stopped_keeps_what_was_learned_before(vit: Vit, home: Path) -> None:
    before = TrainedOn.read(Path("runs/b/model/trained_on")).before
    Path("runs/a/model/trained_on").unlink()  # as where the weights came from another place
    done = vit("fit", "--run_dir", "runs/b", "--steps", "4")
    assert done.status == 0, done.err
    after = TrainedOn.read(Path("runs/b/model/trained_on")).before
    assert len(before) == 54 and np.array_equal(before, after)


@pytest.mark.parametrize("way", ["link", "link of a checkpoint", "inside", "other format", "alone"])
def test_the_record_is_found_from_wherever_the_weights_are_named(
    vit: Vit, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    learned, run = names(vit, "runs/b", "train"), Path("runs/b").resolve()
    weights = "weights.safetensors"
    if way == "link":
        Path(weights).symlink_to(run / "model" / "model.safetensors")
    elif way == "link of a checkpoint":
        Path(weights := "weights.ckpt").symlink_to(run / "checkpoints" / "last.ckpt")
    elif way == "inside":
        monkeypatch.chdir(run / "checkpoints")
        weights = "last.ckpt"
    elif way == "other format":
        weights = "there"
        assert vit("convert", run, weights, "--to", "huggingface").status == 0
    else:
        shutil.copy(run / "model" / "model.safetensors", weights)
    options = ("--data.image_size=16",)
    done = tuned(vit, home, weights, str(tmp_path / "runs" / "c"), *options)
    assert done.status == 0, done.err
    without = f"{weights} has no record of its training images" in done.err
    monkeypatch.chdir(tmp_path)
    assert without if way == "alone" else not names(vit, "runs/c", "test") & learned
