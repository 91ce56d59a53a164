"""Words of other packages: each one works as typed, or is answered by the line to type."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parity.words import PAGE, page
from tests.command import Vit, vit
from vit.data.module import ImageData
from vit.errors import UserError
from vit.extensions.scale import batch_trial
from vit.extensions.words.command_lines import Word, in_our_words, words
from vit.recipes import flat
from vit.runs import options
from vit.runs.options import Options
from vit.runs.short_names import SHORT

__all__ = ["vit"]

IN_FIT = [row for row in words() if "fit" in row.commands.split() and row.ours[:1] == "-"]
SHOWN = sorted(
    {
        row.ours.replace("{}", row.example)
        for row in words()
        if row.ours.startswith("-") and not row.same and {*row.commands.split(), "fit"} == {"fit"}
    }
)

STAND_INS = {
    "wandb": "tensorboard",
    "--resume FILE": "--resume never",
    "labels.csv": "my_photos",
}
"""Text of a row -> what needs no other package or file."""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_photos/cat").mkdir(parents=True)
    Path("empty.yaml").write_text("model: {optimizer: AdamW}\n")
    monkeypatch.setattr(options, "fill_from_weights", lambda config, built: None)
    monkeypatch.setattr(ImageData, "look", lambda data, before=None: data)
    monkeypatch.setattr(batch_trial, "computes_on_cpu", lambda accelerator: False)


def configured(typed: list[str]) -> dict[str, Any]:
    """The resolved options of a command line of `vit fit`."""
    recipe = [] if "-c" in typed else ["-c", "empty.yaml"]
    data = [] if re.search("--data[ =-]", shlex.join(typed)) else ["--data=my_photos"]
    config = Options([*recipe, "--trainer.precision=32-true", *data, *typed]).config
    return dict(flat(config.as_dict()))


@cache
def plain() -> dict[str, Any]:
    """The options without another word."""
    return configured([])


def test_the_page_has_the_words() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert len(words()) > 150 and len(SHOWN) > 60


@pytest.mark.parametrize("ours", SHOWN)
def test_what_the_page_says_to_type_is_an_option(ours: str) -> None:
    for there, here in STAND_INS.items():
        ours = ours.replace(there, here)
    assert configured(shlex.split(ours))["data.root"] == "my_photos"


@pytest.mark.parametrize("row", [row for row in IN_FIT if row.same], ids=lambda row: row.theirs)
def test_a_word_that_works_sets_the_options_that_it_names_and_no_other(row: Word) -> None:
    typed = in_our_words(["fit", *line_of(row, row.word.split("|")[0])])
    assert typed is not None and typed[0] == "fit"
    config = configured([word.replace("wandb", "tensorboard") for word in typed[1:]])
    asked = {word[2:].replace("-", "_") for word in typed[1:] if word.startswith("--")}
    # An object with one field that is set is written with all of its fields.
    asked = {tuple(SHORT.get(name, name).split(".")[:2]) for name in asked}
    asked |= {("trainer", "max_epochs"), ("trainer", "max_steps"), ("config",), ("data", "seed")}
    changed = {name for name, value in config.items() if plain().get(name) != value}
    assert {tuple(name.split(".")[:2]) for name in changed} <= asked
    texts = [str(value) for name, value in config.items() if tuple(name.split(".")[:2]) in asked]
    value = row.example.split()[0].split(",")[0] if "{}" in row.ours else ""
    forms = {
        value,
        *(
            str(form(value))
            for form in (float, lambda text: int(float(text)))
            if re.fullmatch(r"[\d.e-]+", value)
        ),
    }
    assert any(form in text for form in forms for text in texts), (forms, texts)


def line_of(row: Word, word: str) -> list[str]:
    """What a person of the other package types."""
    if row.package == "ultralytics" and row.example:
        return [f"{word}={row.example}"]
    dashes = "-" if len(word) == 1 else "--"
    return [dashes + word.replace("_", "-"), *row.example.split()]


@pytest.mark.parametrize(
    "row", [r for r in words() if r.word], ids=lambda r: f"{r.theirs} {r.word}"
)
def test_every_word_works_or_is_answered(row: Word) -> None:
    command = row.commands.split()[0]
    for word in row.word.split("|"):
        typed = [*word.split(), "fit"] if command == "vit" else [command, *line_of(row, word)]
        try:
            assert in_our_words(typed) is not None and row.same
        except UserError as answer:
            assert not row.same and "type: vit " in str(answer)


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("val RUN", "validate RUN"),
        ("eval RUN", "test RUN"),
        ("resume RUN", "fit --resume RUN"),
        ("help fit", "fit --help"),
        ("fit my_photos", "fit --data my_photos"),
        ("fit -c finetune my_photos", "fit -c finetune --data my_photos"),
        ("train finetune my_photos --epochs 3", "fit -c finetune --data my_photos --epochs 3"),
        ("train data=my_photos epochs=3 lr0=0.1", "fit --data my_photos --epochs 3 --lr 0.1"),
        ("fit --data D --label-smoothing 0.1", "fit --data D --model.loss.label_smoothing 0.1"),
        ("fit --data D --accelerator gpu --strategy ddp --precision bf16",
         "fit --data D --trainer.accelerator gpu --trainer.strategy ddp "
         "--trainer.precision bf16-mixed"),
        ("fit --data D --per_device_train_batch_size 8 --warmup_steps 9",
         "fit --data D --batch-size 8 --model.schedule.warmup_steps 9 "
         "--model.schedule.warmup_epochs 0"),
        ("fit --data D --val_split 0.2", "fit --data D --data.splits.val_fraction 0.2"),
        ("fit --data D --device cpu", "fit --data D --trainer.accelerator cpu"),
        ("fit --data D --scale 0.08 1.0 --json",
         "fit --data D --data.augment.crop inception --data.augment.crop_area [0.08,1.0] --json"),
        ("classify RUN my_photos --topk 3", "classify RUN my_photos --top 3"),
        ("classify --images my_photos --model RUN", "classify RUN my_photos"),
        ("classify RUN D --batch_size 4 --on_error skip",
         "classify RUN D --batch-size 4 --on-error skip"),
        ("export RUN format=onnx", "export RUN --format onnx"),
    ],
)  # fmt: skip
def test_a_line_works_as_typed(typed: str, ours: str) -> None:
    assert in_our_words(typed.split()) == ours.split()


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("info RUN", "vit runs RUN"),
        ("data stats D", "vit data check D"),
        ("fit --data D --opt adamw", "vit fit --data D --model.optimizer AdamW"),
        ("fit --data D --amp", "vit fit --data D --trainer.precision bf16-mixed"),
        ("fit --amp my_photos", "vit fit --trainer.precision bf16-mixed --data my_photos"),
        ("fit --data D --freeze", "vit fit --data D --model.learning.freeze_backbone true"),
        ("fit --data D --mixup 0.2", "vit fit --data D --model.mixing.mixup 0.2"),
        ("fit --data D --val DIR", "vit fit --data D"),
        ("fit --data D --name a", "vit fit --data D --run_dir runs/a"),
        ("fit --train_dir D --do_train --pin-mem", "vit fit --data D"),
        ("fit --data D --decay-milestones 30 60",
         "vit fit --data D --model.schedule.decay steps --model.schedule.drops '[0.3,0.6]'"),
        ("fit --data D --val_split dev", "vit fit --data D --data.splits.val_fraction 0.1"),
        ("fit --data D --gpus 1", "vit fit --data D --devices 1"),
        ("fit --data D --dry-run", "vit fit --data D --trainer.fast_dev_run true"),
        ("fit --data D --output out", "vit fit --data D --run_dir out"),
        ("fit --data D --lr 1e-4,1e-3", "vit fit --data D --lr 1e-3"),
        ("train model=vit_s16 data=D", "vit fit --pretrained vit_s16 --data D"),
        ("train my_photos --model vit_s16 --pretrained --num-classes 3",
         "vit fit --data my_photos --pretrained vit_s16"),
        ("classify predict model=RUN source=D", "vit classify RUN D"),
        ("predict RUN my_photos", "vit classify RUN my_photos"),
        ("predict --source my_photos", "vit classify RUN my_photos"),
        ("classify RUN D --output a.csv", "vit classify RUN D --out a.csv"),
        ("classify RUN D --threshold 0.5", "vit classify RUN D --confidence 0.5"),
    ],
)  # fmt: skip
def test_a_line_that_means_something_else_is_answered(typed: str, answer: str) -> None:
    with pytest.raises(UserError) as refused:
        in_our_words(typed.split())
    assert str(refused.value).endswith(f"; type: {answer}")


def test_an_error_behind_translated_words_is_its_own(
    vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")

    def command(args: list[str]) -> int:
        raise full if args == ["--top", "3"] else UserError("no option --topk")

    monkeypatch.setattr("vit.cli.main.resolve", lambda row: command)
    status, _, err = vit("classify", "--topk", "3")
    assert (status, err) == (1, "vit: No space left on device\n")


def test_options_behind_a_dash_pair_and_of_a_pass_through_stay() -> None:
    for typed in (
        "transfer R --data D -- --data.batch_size 8 --batch 4",
        "selftrain -c R --data D --run_dir a",
        "predict --split val my_photos",
    ):
        assert in_our_words(typed.split()) is None


def test_two_meanings_are_both_named() -> None:
    with pytest.raises(UserError, match=r"timm: the parameter .* ultralytics: a probability"):
        in_our_words(["fit", "--mixup", "0.2"])


@pytest.mark.parametrize(
    "typed", ["fit --data D --lr 0.1", "fit --nonsense 3", "nonsense x", "classify train x.jpg",
              "fit --pretrained google/x --data D",
              "fit --resume whole --data D", "fit --run_dir a --resume a/checkpoints/last.ckpt",
              "fit --data train my_photos",
              "models vit_b16 --json"],
)  # fmt: skip
def test_our_words_stay(typed: str) -> None:
    Path("train").mkdir()
    assert in_our_words(typed.split()) is None


def test_a_command_is_run_once_more_in_our_words(vit: Vit) -> None:
    Path("a.yaml").write_text("model: {name: vit_ti16, pretrained: null}\n")
    line = "train my_photos --config a.yaml --smoothing 0.1 --img-size 64 --print_config"
    status, out, _ = vit(*line.split())
    assert status == 0 and "label_smoothing: 0.1" in out and "image_size:" in out
    status, _, err = vit("train", "my_photos", "--amp")
    assert status == 2
    assert err.splitlines()[-1].endswith(
        "type: vit fit --data my_photos --trainer.precision bf16-mixed"
    )
    assert vit("help", "classify").out.startswith("usage: vit classify")


def test_a_word_is_no_file_and_stands_for_no_second_model() -> None:
    Path("img=1.jpg").touch()
    assert in_our_words(["classify", "RUN", "img=1.jpg"]) is None
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "config.json").touch()
    for typed in ("classify a my_photos --weights b", "test a model=b"):
        with pytest.raises(UserError, match="b and a are two models; give one"):
            in_our_words(typed.split())
    assert in_our_words("classify my_photos --weights b".split()) == ["classify", "b", "my_photos"]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (
            "fit --freeze my_photos",
            "vit fit --model.learning.freeze_backbone true --data my_photos",
        ),
        ("fit --data my_photos --freeze False", "vit fit --data my_photos"),
        ("fit --pin-mem my_photos", "vit fit --data my_photos"),
        ("predict source=my_photos model=RUN", "vit classify RUN my_photos"),
        ("predict --source my_photos", "vit classify RUN my_photos"),
    ],
)
def test_a_flag_leaves_the_images_behind_it(typed: str, answer: str) -> None:
    with pytest.raises(UserError) as error:
        in_our_words(typed.split())
    assert str(error.value).endswith(f"; type: {answer}")


def test_a_word_without_its_value_is_no_word() -> None:
    assert in_our_words(["fit", "--data", "my_photos", "--smoothing"]) is None
    with pytest.raises(UserError, match="--amp and --amp-dtype are one option; give one"):
        in_our_words("fit --data my_photos --amp --amp-dtype bfloat16".split())
