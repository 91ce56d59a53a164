"""Short names are the long ones, bit for bit, and mistakes in them cost no second."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import TINY, Vit
from vit.recipes import read_options
from vit.runs.options import Options
from vit.runs.short_names import SHORT, Words

LIGHT = """\
import contextlib, io, json, sys
from vit.cli.main import main
ends = []
for typed in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(typed.split())
    ends.append([status, 'torch' in sys.modules, err.getvalue()])
print(json.dumps(ends))
"""


@pytest.mark.parametrize(
    ("typed", "long"),
    [
        ("--lr 0.1 --arch=vit_b16", ["--model.optimizer.lr=0.1", "--model.name=vit_b16"]),
        ("--epochs 3", ["--trainer.max_epochs=3", "--trainer.max_steps=-1"]),
        ("--steps=9", ["--trainer.max_steps=9", "--trainer.max_epochs=-1"]),
        ("--batch-size 8 --seed 1", ["--data.batch_size=8", "--seed_everything=1"]),
        ("--run-dir a --data.loading.num-workers=2",
         ["--run_dir=a", "--data.loading.num_workers=2"]),
        ("--model.loss.class_weights.big-cat 2", ["--model.loss.class_weights.big-cat=2"]),
        ("--data digits", ["--data.dataset=digits", "--data.root=null"]),
        ("--data . --json", ["--data.root=.", "--json"]),
        ("-c quickstart --ckpt_path never", ["-c", "quickstart", "--resume=never"]),
        ("--trainer.callbacks+=a-b", ["--trainer.callbacks+=a-b"]),
        ("--image-size 32x48", ["--data.image_size=[32,48]"]),
        ("--lr 1 --lr=2 --model.optimizer.lr=2", [f"--model.optimizer.lr={n}" for n in (1, 2, 2)]),
    ],
)  # fmt: skip
def test_short_names_are_written_out(typed: str, long: list[str]) -> None:
    assert Words(typed.split()).written == long
    assert Words(long).written == long


def test_recipes_add_up_to_one_architecture(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(
        "model:\n  architecture:\n    depth: 3\n    variant:\n      mlp: geglu\n"
    )
    (tmp_path / "most.yaml").write_text(
        "model: {architecture: {variant: {mixer: {name: window, size: 2}}}}\n"
    )
    words = ["-c", "quickstart", "-c", str(tmp_path / "more.yaml")]
    words += ["-c", str(tmp_path / "most.yaml"), "--trainer.precision=32-true"]
    ours = Options(["-c", "quickstart", "--trainer.precision=32-true"]).config.model.architecture
    both = Options(words).config.model.architecture
    variant = {"mlp": "geglu", "mixer": {"name": "window", "size": 2}}
    assert both == {**ours, "depth": 3, "variant": variant}
    parts = ("variant.mixer.name=window", "variant.mlp=geglu", "variant.mixer.size=2", "depth=3")
    typed = [f"--model.architecture.{part}" for part in parts]
    assert Options([*words[:2], words[-1], *typed]).config.model.architecture == both
    assert Options([*words, "--model.architecture.depth=4"]).config.model.architecture == {
        **both,
        "depth": 4,
    }


def test_a_field_is_set_in_the_mapping_before_it(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("{pretrained: null, architecture: {width: 16, depth: 1}}")
    recipe = ["-c", "cifar10", "--data=digits", "--trainer.precision=32-true"]
    for whole in ("--model.architecture={width: 16, depth: 1}", f"--model={tmp_path / 'm.yaml'}"):
        both = Options([*recipe, whole, "--model.architecture.width=32"])
        assert both.config.model.architecture == {"width": 32, "depth": 1}
        last = Options([*recipe, "--model.architecture.width=32", whole])
        assert last.config.model.architecture == {"width": 16, "depth": 1}


def test_every_short_name_is_an_option() -> None:
    defaults = Options(["-c", "quickstart", "--trainer.precision=32-true"]).parser.get_defaults()
    known = {*defaults.keys()} - {"own", "weights"}  # of config.yaml alone
    options = {option for row in SHORT.values() for option in row.split()}
    assert options - {"model.optimizer.lr", "model.schedule.cooldown_steps"} <= known


def test_a_folder_named_like_a_data_set_is_the_folder(vit: Vit) -> None:
    Path("cifar10").mkdir()
    assert Words(["--data", "cifar10"]).written == ["--data.root=cifar10"]


MISTAKES = [
    ("fit --epochs 2 --steps 3 --data digits",
     "--epochs 2 and --steps 3 contradict each other; give one"),
    ("fit --data photoz", "did you mean 'photos'"),
    ("fit --data cifar", "did you mean 'cifar10' or 'cifar100'"),
    ("fit --data digits --batchsiz 3", "no option --batchsiz; did you mean 'batch_size'"),
    ("fit --data digits --pretrained --seed 3", "--pretrained needs a value"),
    ("train --data digits --model vit_x", "type: vit fit --data digits --pretrained vit_x"),
    ("fit --data", "--data needs a value"),
    ("fit --data digits --lr=", "--lr needs a value"),
    ("test runs/x --dta digits", "no option --dta"),
    ("classfy --data digits", "did you mean 'classify'"),
    ("fit --data photos --data.root .", "--data photos and --data.root . contradict each"),
    ("fit --data photos --pretrained a --model.pretrained=b",
     "--pretrained a and --model.pretrained b contradict each other; give one"),
    ("fit --data photos --run_dir=a --output_dir b",
     "--output_dir and --run_dir are one option; give one"),
    ("fit --data photos --trainer.max_steps 9 --epochs 3",
     "--trainer.max_steps 9 and --epochs 3 contradict each other"),
    ("fit --data photos --epochs abc", "--epochs abc is not a number; type --epochs 10"),
    ("fit --data photos --steps true", "--steps true is not a number; type --steps 999"),
    ("fit --data photos --batch-size x", "--batch_size x is not a number; type --batch_size"),
    ("test RUN --image-size 64px", "--image_size 64px is not a number; type --image_size"),
    ("fit --data photos --seed x", "--seed x is not a number; type --seed 0"),
    ("fit --data photos --lr fast", "--lr fast is not a number; type --lr 0.001"),
    ("fit --data photos nonsense=3", "'nonsense=3' is not an option"),
]  # fmt: skip


def test_a_mistake_in_a_word_is_one_line_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    typed = json.dumps([typed for typed, _ in MISTAKES])
    command = [sys.executable, "-c", LIGHT, typed]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    for end, (typed, message) in zip(json.loads(done.stdout), MISTAKES, strict=True):
        status, heavy, err = end
        [line] = err.splitlines()
        assert (status, heavy) == (2, False) and message in line, (typed, line)


@pytest.mark.parametrize(
    "typed",
    [
        "--data . --data.root=.",
        "--epochs 3 --trainer.max_steps -1",
        "--epochs 3 --trainer.max_epochs=3",
        "--lr 1e-3 --model.optimizer.lr 0.001",
        "--image-size 16x16 --image_size 16,16 --data.image_size [16,16]",
        "--lr 1 --epochs 1_000 --seed null --batch-size auto --devices 0,1",
        "--data.image_size [32,48] --batch-size auto --model.name vit_s16.augreg_in21k",
        "--data mine.yaml --data.root .",
        "--trainer.max_epochs 3 --trainer.max_steps 9",
        "--run_dir epochs=3",
    ],
)
def test_options_that_agree_are_taken(typed: str) -> None:
    assert Words(typed.split()).written


def test_what_a_command_sets_is_refused_by_its_short_name(vit: Vit, photos: Path) -> None:
    done = vit("transfer", "runs/x", "--data", photos, "--", "--lr", "3")
    assert done.status == 2 and "--model.optimizer.lr: `vit transfer` sets it" in done.err


def test_a_short_run_equals_its_long_form_to_the_bit(vit: Vit, photos: Path) -> None:
    rest = (*(arg for arg in TINY if "_size" not in arg), "--model.pretrained=null")
    short = vit(
        "train", "--data", photos, "--lr", "0.01", "--steps", "2", "--batch-size=8",
        "--image-size=16", "--seed", "5", "--run-dir", "short", *rest,
    )  # fmt: skip
    assert short.status == 0 and "recipe finetune (-c names another" in short.err
    long = vit(
        "fit", "-c", "finetune", "--data.root", photos, "--model.optimizer.lr=0.01",
        "--trainer.max_steps=2", "--trainer.max_epochs=-1", "--data.batch_size=8",
        "--data.image_size=16", "--seed_everything=5", "--run_dir=long", *rest,
    )  # fmt: skip
    assert long.status == 0 and "recipe finetune" not in long.err
    for name in ("config.yaml", "model/model.safetensors"):
        assert Path("short", name).read_bytes() == Path("long", name).read_bytes(), name
    again = vit("test", "--data", photos, "short", "--batch-size", "3", "--json")
    assert again.status == 0 and "test/acc1" in json.loads(again.out)


def test_a_rate_without_an_optimizer_is_adamws(vit: Vit, photos: Path) -> None:
    Path("mine.yaml").write_text("trainer: {max_steps: 1, max_epochs: -1}\n")
    done = vit("fit", "-c", "mine.yaml", "--data", photos, "--lr", "0.5", "--run_dir=run", *TINY)
    assert done.status == 0, done.err
    optimizer = read_options(Path("run/config.yaml"))["model"]["optimizer"]
    assert optimizer["class_path"].endswith("AdamW")
    assert (optimizer["init_args"]["lr"], optimizer["init_args"]["weight_decay"]) == (0.5, 0.05)


def test_a_file_of_data_options_is_data(vit: Vit, photos: Path) -> None:
    Path("mine.yaml").write_text(f"root: {photos}\nbatch_size: 8\n")
    assert Words(["--data", "mine.yaml"]).written == ["--data=mine.yaml"]
    assert Options(["-c", "cifar10", "--data", "mine.yaml", *TINY]).config.data.root == str(photos)
