"""Runs of `vit fit -c pretrain/dino_toy` that are watched: one that collapses, and a yardstick."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.command import Vit
from tests.extensions.ssl.trainings import of
from vit.extensions.ssl.watch import Progress, verdict
from vit.weights.archives import read_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")
TOY = (
    "fit", "-c", "pretrain/dino_toy", "--data.image_size=16", "--data.batch_size=8",
    "--data.crops={local: 2, local_size: 8, blur: false}",
    "--model.architecture={patch_size: 4, width: 16, depth: 2, mlp_dim: 32, num_heads: 2}",
    "--model.heads={prototypes: 24, hidden: 32, bottleneck: 8}",
    "--data.loading.num_workers=0", "--trainer.accelerator=cpu", "--run_dir=run",
)  # fmt: skip
# Thirty times the rate of the recipe; and nothing that holds the features together.
FAST = ("--model.optimizer.lr=0.03", "--model.schedule.warmup_steps=5")
FREE = ("--model.koleo=0", "--model.teacher.momentum=0.5", "--trainer.gradient_clip_val=null")
ALIKE = r"the teacher's answers no longer depend on the image \((\S+) nats on it, now "
ALIKE += r"(\S+)\): lower the temperatures of model.teacher, or the rate"
RANK = r"the effective rank of the features fell from (\S+) at the start to (\S+), by more than .*"


@pytest.mark.parametrize("harm", [FAST, (*FAST, *FREE)], ids=["rate", "free"])
def test_a_run_made_to_collapse_is_found_and_named_and_its_best_weights_are_kept(
    harm: tuple[str, ...], photos: Path, vit: Vit
) -> None:
    done = vit(*TOY, *harm, "--steps=200", "--data.root", photos)
    assert done.status == 0, done.err
    line = next(line for line in done.out.splitlines() if line.startswith("stopped at step"))
    pattern = rf"stopped at step (\d+): (?:{ALIKE}|{RANK}); the weights of step (\d+) are kept"
    found = re.fullmatch(pattern, line)
    assert found is not None, line
    step, start, end, kept = (float(each) for each in found.groups() if each is not None)
    by_rank = "effective rank" in line
    assert end - 1 < (start - 1) / 4 + 0.1 if by_rank else end < min(0.1, start / 4)
    assert kept < step < 100
    summary = json.loads(Path("run/summary.json").read_text())
    assert line in summary["headline"]
    assert summary["checkpoint"]["step"] == kept and summary["steps"] <= step + 1
    best = of(read_checkpoint(Path("run/checkpoints/best.ckpt"))["state_dict"], "model.")
    last = of(read_checkpoint(Path("run/checkpoints/last.ckpt"))["state_dict"], "model.")
    model = load_file("run/model/model.safetensors")
    assert all(torch.equal(value, best[name]) for name, value in model.items())
    assert not all(torch.equal(value, last[name]) for name, value in model.items())
    assert "--steps" not in done.out.partition("\nnext:\n")[2]  # it would end at once
    more = vit("fit", "--run_dir=run", "--steps=400")
    assert more.status == 0 and "give other options and another --run_dir" in more.err, more.err


def test_weights_of_the_start_are_called_so_with_and_without_a_yardstick() -> None:
    for hits in ([], [torch.ones(9) > 0] * 2):
        progress = Progress({}, 9.0, 1.0, hits, hits)
        assert verdict(progress) == "no look was better than the start, whose weights model/ holds"
    progress = Progress({}, 9.0, 1.0, [], [], kept_step=5)
    assert "whether it is better than the start, `vit knn` tells" in verdict(progress)


def test_a_yardstick_says_what_the_run_has_brought(photos: Path, vit: Vit) -> None:
    words = (*TOY, "--data.root", photos, "--model.yardstick", photos, "--model.looks=4")
    done = vit(*words, "--steps=8")
    assert done.status == 0, done.err
    start = r"neighbours name \d+ of 18 other images rightly at the start, \d+ by the teacher of "
    better = start + r"step \d, .*, (a gain|a loss|no difference is shown)"
    same = "no look was better than the start, whose weights model/ holds"
    result = re.search(f"yardstick: {better}|{same}", done.out)
    assert result is not None and result[0] in vit(*words, "--steps=8").out  # which is finished
    counted = r"note: \d+ of 18 labelled (train|test) images were in the training of run"
    assert len(re.findall(counted, done.err)) == 2
    rows = Path("run/metrics.csv").read_text().splitlines()
    assert {"effective_rank", "prototype_share", "yardstick/knn"} <= {*rows[0].split(",")}
    state = read_checkpoint(Path("run/checkpoints/last.ckpt"))["callbacks"]
    watch = next(each["watch"] for each in state.values() if "watch" in each)
    assert watch["step"] == 8 and [len(half) for half in watch["hits"]] == [18, 18]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model.looks=0",), "model.looks=0 must be at least 1"),
        (("--model.yardstick=missing",), "missing"),
    ],
)
def test_a_mistake_is_one_line(
    photos: Path, vit: Vit, words: tuple[str, ...], message: str
) -> None:
    done = vit(*TOY, "--steps=1", "--data.root", photos, *words)
    assert done.status == 2 and message in done.err.splitlines()[-1], done.err
