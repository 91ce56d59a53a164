"""`vit tune`: what is chosen, how the work goes on and is shared, and what is refused."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.command import Vit, saved
from tests.killing import in_child, killed_at
from vit.cli.main import main
from vit.errors import UserError
from vit.extensions.evaluation.paired import mean_difference
from vit.extensions.transfer import divided as jobs
from vit.extensions.tune import tune
from vit.extensions.tune.halving import Timing
from vit.extensions.tune.space import SPACE
from vit.runs.predictions import Predictions
from vit.writing import beside, write_json

ROOT = Path(__file__).parents[3]
FAKE = (sys.executable, str(Path(__file__).with_name("fake_fit.py")))
PROCESS = (
    "import sys; from vit.extensions.transfer import divided as jobs; "
    "from vit.cli.main import main; "
    f"jobs.COMMAND = {FAKE!r}; jobs.POLL_SECONDS = 0.02; sys.exit(main(sys.argv[1:]))"
)
"""`vit` with runs of fake_fit.py."""
OPTIONS = ("--", "--trainer.accelerator=cpu", "--data.loading.num_workers=0")
WINNER = "rate-3"
"""The best cell of fake_fit.py that differs from the default in one option."""


@pytest.fixture
def command(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[str, ...]:
    """A `vit tune` whose cells are runs of fake_fit.py; nine cells."""
    monkeypatch.setattr(jobs, "COMMAND", FAKE)
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.02)
    monkeypatch.setattr("vit.extensions.tune.halving.MOST_CELLS", 9)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "runs.log"))
    saved(Path("pre"), None)
    return ("tune", "--data", str(photos), "--budget=1h", "--pretrained=pre", "--run_dir=out")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[jobs.Job]:
    """The runs of the test's searches, as they begin."""
    begun: list[jobs.Job] = []
    run = jobs.Job.run
    monkeypatch.setattr(jobs.Job, "run", lambda job: (begun.append(job), run(job))[1])
    return begun


def side_by_side(*commands: tuple[str, ...], **more: str) -> list[tuple[dict[str, Any], list[str]]]:
    """The result of each `vit tune` of two at the same time, and the runs that it has ended."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pair = [
        subprocess.Popen([sys.executable, "-c", PROCESS, *words], env=variables, **pipes)
        for words in commands
    ]
    outputs = [process.communicate() for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs
    ended = [re.findall(r"^(\S+): [\d.]+% of", err.decode(), re.MULTILINE) for _, err in outputs]
    return [(json.loads(out), names) for (out, _), names in zip(outputs, ended, strict=True)]


def summary(folder: str = "out") -> dict[str, Any]:
    return json.loads(Path(folder, "summary.json").read_text())


def begun() -> Counter[str]:
    """Name of a run -> times that it was begun."""
    file = Path("runs.log")
    return Counter(file.read_text().split() if file.is_file() else ())


def test_the_best_cell_is_compared_with_the_default_on_test(
    vit: Vit, command: tuple[str, ...]
) -> None:
    done = vit(*command, "--json", *OPTIONS)
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert result == summary() and result["winner"] == WINNER and result["cut"] == []
    assert [len(rung["val"]) for rung in result["rungs"]] == [9, 3, 2]
    steps = [rung["steps"] for rung in result["rungs"]]
    assert steps == [steps[2] // 9, steps[2] // 3, result["steps"]]
    assert all("default" in rung["val"] for rung in result["rungs"])
    assert {*result["rungs"][2]["val"]} == {WINNER, "default"}
    assert [*result["test"]] == ["best", "default"]
    for scores in result["test"].values():
        assert len(scores) == 3 and None not in scores
    [low, high] = result["difference"]["interval"]
    assert result["difference"]["points"] == pytest.approx(20, abs=2) and 0 < low < high
    assert (result["difference"]["pairs"], result["difference"]["images"]) == (3, 60)
    # Each run once, the probe in one rung only, and the timed run as a cell where it is as long.
    assert set(begun().values()) == {1}
    again = vit(*command, *OPTIONS)
    assert again.status == 0 and set(begun().values()) == {1}
    assert "a gain over the default" in again.out and "no gain" not in again.out
    assert "vit classify out/best PHOTO" in again.out


def test_options_are_compared_by_cells_that_differ_in_them_alone(
    vit: Vit, command: tuple[str, ...]
) -> None:
    result = json.loads(vit(*command, "--json", *OPTIONS).out)
    rows = {(row["option"], row["value"]): row for row in result["options"]}
    assert rows["rate", "3"]["points"] == pytest.approx(20, abs=3)
    assert rows["rate", "0.3"]["points"] == pytest.approx(-10, abs=3)
    assert rows["method", "lora"]["points"] == pytest.approx(-30, abs=3)
    assert rows["layer_decay", "0.9"]["points"] == 0
    assert all(row["images"] == 40 for row in rows.values())


def test_cells_share_the_cut_of_val_and_final_runs_train_on_it(
    vit: Vit, command: tuple[str, ...], made: list[jobs.Job]
) -> None:
    assert vit(*command, "--seed=5", *OPTIONS).status == 0
    for job in made:
        texts = dict(word.removeprefix("--").partition("=")[::2] for word in job.words)
        assert texts["data.splits.seed"] == "5"
        final = job.split == "test"
        assert ("data.splits.val_fraction" in texts) != final
        seed = int(texts["seed_everything"]) - 5
        assert seed == (int(job.folder.name[-1]) if "_seed" in job.folder.name else 0)
        assert texts["final_split"] == job.split
    assert len([job for job in made if job.split == "test"]) == 6
    assert not Path("out/cells/default_3/checkpoints").exists()
    assert Path("out/best/checkpoints").exists()


def test_cells_of_encoders_that_know_some_images_share_the_others(
    vit: Vit, command: tuple[str, ...], photos: Path, made: list[jobs.Job]
) -> None:
    learned: set[str] = set()
    for run, numbers in (("red", range(4)), ("blue", range(3, 7))):
        for path in sorted(photos.rglob("*.jpg")):
            if int(path.stem) in numbers:
                place = Path("of", run, path.relative_to(photos))
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(path.read_bytes())
                learned.add(path.relative_to(photos).as_posix())
        whole = ("--data.splits.val_fraction=0", "--data.splits.test_fraction=0", *OPTIONS[1:])
        start = ("--data", f"of/{run}", "--pretrained=pre", f"--run_dir={run}", *whole)
        assert vit("fit", "-c", "probe", *start).status == 0
    encoders = ("--pretrained=red", "--pretrained=blue")
    done = vit(*command[:-2], *encoders, "--run_dir=out", *OPTIONS)
    assert done.status == 0, done.err
    texts = [dict(word.removeprefix("--").partition("=")[::2] for word in j.words) for j in made]
    assert {text["model.pretrained"] for text in texts} == {"red", "blue"}
    lists = {(job.split, text["data.root"]) for job, text in zip(made, texts, strict=True)}
    assert lists == {("val", "out/search.csv"), ("test", "out/final.csv")}
    tested = {}
    for split, file in lists:
        rows = [row.split(",") for row in Path(file).read_text().splitlines()[1:]]
        held_out = {
            name: {Path(path).relative_to(photos).as_posix() for path, _, of in rows if of == name}
            for name in ("val", "test")
        }
        assert held_out["test"] and bool(held_out["val"]) == (split == "val")
        assert not (held_out["val"] | held_out["test"]) & learned
        tested[split] = held_out["test"]
    assert tested["val"] == tested["test"]
    for path in photos.rglob("*.jpg"):  # of the same names
        path.write_bytes(path.read_bytes() + b"\0")
    changed = vit(*command[:-2], *encoders, "--run_dir=out", *OPTIONS)
    assert changed.status == 2 and "choose another --run_dir" in changed.err


def test_no_gain_is_an_answer(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", "lora")
    monkeypatch.setattr(
        "vit.extensions.tune.halving.MOST_CELLS", 3
    )  # and the probe, which is worse
    done = vit(*command, *OPTIONS)
    assert done.status == 0, done.err
    assert "no gain over the default" in done.out and summary()["winner"] == "default"
    assert [*summary()["test"]] == ["best"] and summary()["difference"] is None
    assert summary()["rungs"][0]["failed"] == {"method-lora": "the loss is not finite since step 2"}
    assert "the loss is not finite since step 2" in done.out
    assert "next:\n  vit classify out/best PHOTO" in done.out


MOMENTS = [
    (jobs.subprocess, "Popen", 1),
    (jobs.subprocess.Popen, "wait", 1),  # of the timed run, which goes on alone
    (jobs, "write_json", 1),
    (jobs, "write_json", 2),  # plan.json, after a record
    (jobs.subprocess.Popen, "wait", 2),
    (jobs, "write_json", 1),
    (jobs, "write_json", 2),  # rung_1.json, after a record
    (jobs.subprocess, "Popen", 1),
    (jobs, "write_json", 3),  # rung_2.json, after two
    (jobs, "write_json", 4),  # rung_3.json, after rung_2.json and two
    (jobs, "write_json", 3),
    (jobs.subprocess.Popen, "wait", 4),
    (tune, "write_json", 1),  # summary.json
]


def test_a_search_that_is_killed_at_any_moment_ends_with_the_same_winner(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"rate": SPACE["rate"]}
    monkeypatch.setattr("vit.extensions.tune.space.SPACE", few)
    monkeypatch.setattr(tune, "SPACE", few)
    words, decisions = [*command, *OPTIONS], dict[str, bytes]()
    for moment in MOMENTS:
        status = in_child(lambda moment=moment: (killed_at(*moment), main(words))[1])
        assert status == -signal.SIGKILL, moment
        files = {file.name: file.read_bytes() for file in Path("out").glob("*_?.json")}
        assert decisions.items() <= files.items()
        decisions = files
    assert len(decisions) == 3 and not Path("out/summary.json").exists()
    assert vit(*words).status == 0
    assert vit(*command, "--run_dir=whole", *OPTIONS).status == 0
    killed, unbroken = summary(), summary("whole")
    assert killed["winner"] == unbroken["winner"] == WINNER and killed["cut"] == []
    for name in ("test", "difference", "options"):
        assert killed[name] == unbroken[name]
    for ours, theirs in zip(killed["rungs"], unbroken["rungs"], strict=True):
        assert (ours["val"], ours["best"]) == (theirs["val"], theirs["best"])


def test_two_processes_divide_the_runs(command: tuple[str, ...]) -> None:
    words = (*command, "--json", *OPTIONS)
    (first, ours), (second, theirs) = side_by_side(words, words, FAKE_SECONDS="0.2")
    assert first == second and first["winner"].startswith(WINNER)
    assert set(begun().values()) == {1}
    assert ours and theirs and sorted(ours + theirs) == sorted(begun())


def test_shards_divide_the_runs_and_the_first_one_decides(command: tuple[str, ...]) -> None:
    words = [(*command, "--json", "--shard", shard, *OPTIONS) for shard in ("1/2", "0/2")]
    (second, theirs), (first, ours) = side_by_side(*words)
    assert first == second and first["winner"] == WINNER
    assert set(begun().values()) == {1} and summary()["cut"] == []
    plan = json.loads(Path("out/plan.json").read_text())
    assert plan["timing"]["machines"] == 2
    of_first, of_second = {*ours}, {*theirs}
    assert of_first | of_second == {*begun()} and not of_first & of_second
    cells = [f"{name}_{plan['rungs'][0][1]}" for name in plan["cells"]]
    of_rung = {name.replace("method-probe_3", "method-probe") for name in cells[1::2]}
    assert of_rung <= of_second and not of_rung & of_first
    assert {"default", "default_seed1", "default_seed2"} <= of_second


def test_a_cell_has_a_run_for_each_fold_and_their_mean_as_score(
    vit: Vit, command: tuple[str, ...], made: list[jobs.Job]
) -> None:
    done = vit(*command, "--folds=2", "--json", *OPTIONS)
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert result["winner"] == WINNER and result["images"] == {"train": 16, "val": 33, "test": 3}
    plan = json.loads(Path("out/plan.json").read_text())
    assert plan["timing"]["parts"] == 2
    texts = {
        job.folder.name: dict(word.removeprefix("--").partition("=")[::2] for word in job.words)
        for job in made
    }
    rung = result["rungs"][0]
    for name, score in rung["val"].items():
        at = name if name == "method-probe" else f"{name}_{rung['steps']}"
        of_folds = [texts[f"{at}_fold_{fold}"] for fold in (1, 2)]
        assert [words["data.columns.split"] for words in of_folds] == ["fold_1", "fold_2"]
        assert {words["data.root"] for words in of_folds} == {"out/folds.csv"}
        scores = [summary(f"out/cells/{at}_fold_{f}")["metrics"]["val/acc1"] for f in (1, 2)]
        assert score == pytest.approx(sum(scores) / 2) and scores[0] > scores[1]
    assert all(row["images"] == 80 for row in result["options"])
    final = texts["best_seed1"]
    assert final["data"] == command[2] and "data.columns.split" not in final
    assert final["final_split"] == "test"
    changed = vit(*command, "--folds=3", *OPTIONS)
    assert changed.status == 2 and "folds" in changed.err and "--run_dir" in changed.err
    assert "--folds 1 must be at least 2" in vit(*command, "--folds=1", *OPTIONS).err


def test_a_refused_call_leaves_the_lists_of_a_search_as_they_are(
    vit: Vit, command: tuple[str, ...]
) -> None:
    assert vit(*command, "--folds=3", *OPTIONS).status == 0
    before = Path("out/folds.csv").read_bytes()
    refused = vit(*command, "--folds=3", "--seed=1", *OPTIONS)
    assert refused.status == 2 and "(folds.csv); choose another --run_dir" in refused.err
    assert Path("out/folds.csv").read_bytes() == before


def test_encoders_whose_names_end_alike_are_cells_of_their_own(
    vit: Vit, command: tuple[str, ...], made: list[jobs.Job]
) -> None:
    encoders = [saved(Path(name, "best"), None, seed=i) for i, name in enumerate("ab")]
    words = [*command[:-2], *(f"--pretrained={place}" for place in encoders), "--run_dir=out"]
    assert vit(*words, *OPTIONS).status == 0
    [other] = [job for job in made if job.folder.name == "encoder-b_best_3"]
    assert "--model.pretrained=b/best" in other.words
    saved(encoders[1], None, seed=5)
    changed = vit(*words, *OPTIONS)
    assert changed.status == 2 and "encoders" in changed.err


def test_what_shard_0_refuses_ends_the_others(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.5")
    small = (*command, "--budget=1s")
    assert "too small" in vit(*small, "--shard=0/2", *OPTIONS).err
    other = vit(*small, "--shard=1/2", *OPTIONS)
    assert other.status == 2 and "vit: shard 0: --budget of 1 s is too small" in other.err
    assert vit(*command, "--shard=2/2", *OPTIONS).status == 2
    monkeypatch.setenv("FAKE_SECONDS", "0")
    assert vit(*command, *OPTIONS).status == 2  # another number of shards
    with pytest.raises(UserError, match="a number from 0"):
        tune.tune("photos", budget="1h", shard=(2, 2))


def test_what_was_begun_is_finished_by_its_shard_though_the_time_is_over(tmp_path: Path) -> None:
    def job(name: str) -> jobs.Job:
        return jobs.Job(tmp_path / name, tmp_path, [], "val")

    def run(job: jobs.Job) -> None:
        write_json(tmp_path / f"{job.folder.name}.json", {"began": 0, "ended": 9, "failed": "no"})

    parts = [jobs.Division(tmp_path, (shard, 2), began=0.0) for shard in (0, 1)]
    of_all = [job(name) for name in "abcd"]
    for begun in "ab":
        (tmp_path / f"{begun}.log").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.Job, "run", run)
        patch.setattr(jobs, "POLL_SECONDS", 0.01)
        with ThreadPoolExecutor(2) as pool:
            ends = [pool.submit(part.complete, of_all, 1.0) for part in parts]
            late = [[job.folder.name for job in end.result(timeout=60)] for end in ends]
    assert late == [["c", "d"], ["c", "d"]]
    assert {path.stem for path in tmp_path.glob("*.json")} == {"a", "b"}


def test_pairs_are_of_the_images_that_all_runs_have_read() -> None:
    def answers(indices: list[int], right: list[bool]) -> Predictions:
        top = np.where(right, 0, 1)[:, None]
        return Predictions(
            indices=np.array(indices), names=np.array(indices), labels=np.zeros(len(top), int),
            top_classes=top, top_probabilities=np.ones((len(top), 1)),
            label_probabilities=np.ones(len(top)),
        )  # fmt: skip

    before = jobs.joined([answers([0, 1, 2], [True, False, True]), answers([0, 1], [False, True])])
    after = jobs.joined([answers([0, 2], [True, True]), answers([0, 1], [True, True])])
    with pytest.raises(UserError, match="did not read the same images"):
        mean_difference([(before, after)])
    [pair] = jobs.of_same_images([(before, after)])
    assert [each.hits().tolist() for each in pair] == [
        [True, True, False, True],
        [True, True, True, True],
    ]
    assert mean_difference([pair])["points"] == 25


def test_several_labels_are_compared_by_mean_average_precision(
    vit: Vit, command: tuple[str, ...], photos: Path
) -> None:
    rows = [f"{p},{p.parent.name}{'|any' * (i % 2)}" for i, p in enumerate(photos.rglob("*.jpg"))]
    Path("several.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    words = ("--data", "several.csv", *command[3:])
    labels = (*OPTIONS, "--data.label_separator=|")
    done = vit("tune", *words, "--json", *labels)
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert result["metric"] == "map" and result["winner"] == WINNER
    # Of two labels with one right share of answers, each average precision is near that share.
    [low, high] = result["difference"]["interval"]
    assert 0 < low < result["difference"]["points"] < high
    assert "val, mAP, %" in vit("tune", *words, *labels).out


def test_a_teacher_is_the_run_of_the_default_and_comes_before(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: SPACE[name] for name in ("rate", "teacher")}
    monkeypatch.setattr("vit.extensions.tune.space.SPACE", few)
    monkeypatch.setattr(tune, "SPACE", few)
    monkeypatch.setenv("FAKE_TEACHER", "0.3")
    made: list[jobs.Job] = []
    run = jobs.Job.run

    def checked(job: jobs.Job) -> None:
        made.append(job)
        assert job.after is None or job.after.record
        run(job)

    monkeypatch.setattr(jobs.Job, "run", checked)
    assert vit(*command, *OPTIONS).status == 0
    assert summary()["winner"].endswith("teacher-default")
    taught = [job for job in made if job.after is not None]
    assert [job.folder.name for job in taught][-3:] == ["best", "best_seed1", "best_seed2"]
    for job in taught:
        teacher = job.folder.name.replace("best", "default")
        if job.split == "val":
            teacher = f"cells/default_{teacher.rpartition('_')[2]}"
        assert f"--teacher=out/{teacher}" in job.words


def test_a_record_that_is_being_written_is_not_read(vit: Vit, command: tuple[str, ...]) -> None:
    unfinished = beside(Path("out/cells/default_3.json"))
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text('{"began": 1')
    done = vit(*command, *OPTIONS)
    assert done.status == 0, done.err


def test_what_time_cuts_off_is_named(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty = Timing(0.0, 0.0)  # so that the plan has all cells, and the clock alone ends it
    monkeypatch.setattr(tune, "timed", lambda *_: plenty)
    calls = 0

    def in_time(self: jobs.Division, seconds: float) -> bool:
        nonlocal calls
        calls += seconds < math.inf
        return calls <= 6

    monkeypatch.setattr(jobs.Division, "in_time", in_time)
    done = vit(*command, *OPTIONS)
    assert done.status == 0, done.err
    cut = ["augment-gentle_3", "augment-strong_3", "best", "default"]
    cut += [f"{name}_seed{seed}" for seed in (1, 2) for name in ("best", "default")]
    assert summary()["cut"] == cut and summary()["winner"] == WINNER
    assert all(f"not begun in time: {name}" in done.out for name in cut)
    assert len(summary()["rungs"]) == 1 and "no gain over the default" in done.out


def test_val_without_test_is_scored_once_at_the_end(
    vit: Vit, command: tuple[str, ...], photos: Path
) -> None:
    for name in ("red", "grün", "blue"):
        for split, numbers in (("val", range(4)), ("train", range(4, 12))):
            (photos / split / name).mkdir(parents=True)
            for i in numbers:
                (photos / name / f"{i:02}.jpg").rename(photos / split / name / f"{i:02}.jpg")
        (photos / name).rmdir()
    done = vit(*command, *OPTIONS)
    assert done.status == 0, done.err
    assert "its val is test here, and val is cut from train" in done.err
    assert summary()["images"] == {"train": 18, "val": 6, "test": 12}
    listed = Path("out/images.csv").read_text().splitlines()[1:]
    assert {"val/" in line for line in listed if line.endswith("test")} == {True}


def test_mistakes_are_refused_in_one_line(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(*words: str) -> str:
        done = vit(*command, *words)
        assert done.status == 2 and done.out == ""
        [text] = [text for text in done.err.splitlines() if text.startswith("vit: ")]
        return text

    assert "1x is not a time" in line("--budget=1x", *OPTIONS)
    assert "no published weights of that name" in line("--pretrained=nowhere_s14", *OPTIONS)
    assert "`vit tune` sets it for each run" in line(*OPTIONS, "--trainer.max_steps=3")
    for option in ("--data.splits.seed=3", "--trainer.max_time=00:00:00:05"):
        assert f"{option.partition('=')[0]}: `vit tune` sets it" in line(*OPTIONS, option)
    monkeypatch.setenv("FAKE_SECONDS", "0.5")
    assert re.search(
        r"--budget of 1 s is too small: .* give at least \d+m", line("--budget=1s", *OPTIONS)
    )
    assert vit(*command, *OPTIONS).status == 0
    assert "choose another --run_dir" in line("--run_dir", "out", "--seed=1", *OPTIONS)
    assert not [name for name, count in begun().items() if count > 1]
    monkeypatch.setenv("FAKE_FAILS", "finetune")
    assert "the default recipe failed: the loss" in line("--run_dir=other", *OPTIONS)


def test_the_default_of_a_real_search_is_what_fit_alone_makes(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"method": {"finetune": "", "probe": ""}, "teacher": SPACE["teacher"]}
    halving = {"halving.RUNGS": 1, "halving.SEEDS": 1, "halving.FEWEST_CELLS": 2}
    of_tune = {"tune.SPACE": few, "tune.SEEDS": 1, "tune.TRIAL_STEPS": (3, 99)}
    for name, value in ({"space.SPACE": few} | halving | of_tune).items():
        monkeypatch.setattr(f"vit.extensions.tune.{name}", value)
    saved(Path("pre"), None)
    shared = ("--data", photos, "--pretrained=pre")
    more = (*OPTIONS, "--data.augment.flip=false")  # which a probe alone would refuse
    done = vit("tune", *shared, "--budget=2h", "--run_dir=out", "--json", *more)
    assert done.status == 0, done.err
    [rung] = summary()["rungs"]
    assert [*rung["val"]] == ["default", "method-probe", "teacher-default"]
    assert not rung["failed"]
    cells = {name: summary(f"out/cells/{name}") for name in ("default_35", "method-probe")}
    assert cells["default_35"]["metrics"]["val/acc1"] == rung["val"]["default"]
    sizes = {"train": 33 - 12, "val": 12, "test": 3}
    assert all(run["images"] == sizes for run in (*cells.values(), summary()))

    assert vit("fit", *shared, "--run_dir=alone", *more[1:]).status == 0
    default = "out/best" if summary()["winner"] == "default" else "out/default"
    ours, theirs = summary(default), summary("alone")
    names = ("steps", "images", "splits", "images_seen")
    assert [ours[name] for name in names] == [theirs[name] for name in names]
    ours, theirs = (load_file(f"{run}/model/model.safetensors") for run in (default, "alone"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
