"""One run, one directory: who gets it, what a failed start leaves, what of the user's is safe."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Vit
from vit.cli.run_directory import Claim, claim_new, claim_resumed, kept
from vit.errors import UserError
from vit.locking import FileLock, Locked

SHORT = ("--trainer.max_steps=1", "--final_split=none")
# What every run of a version before the lock has written.
OLD_CONFIG = "seed_everything: 0\ntrainer:\n  max_epochs: 1\nmodel:\n  name: x\ndata:\n  root: x\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_directory_that_is_written_to_is_refused_with_the_writer(here: Path) -> None:
    first = claim_new("run", "x")
    with pytest.raises(Locked, match=rf"^run_dir=run is being .* process {os.getpid()} on "):
        claim_new("run", "x")
    first.release()
    claim_new("run", "x").release()


def test_default_names_move_on_while_a_run_has_not_written_anything(here: Path) -> None:
    claims = [claim_new(None, "digits") for _ in range(3)]
    assert [claim.folder for claim in claims] == [
        Path("runs/digits"), Path("runs/digits-2"), Path("runs/digits-3")
    ]  # fmt: skip
    for claim in claims:
        claim.release()


def test_other_processes_of_a_run_claim_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with kept(claim_new("run", "x")), kept(claim_new("run", "x")):
        assert not Path("run").exists()


@pytest.mark.parametrize("inside", [{}, {"config.yaml": OLD_CONFIG}, {"log.txt": "started"}])
def test_a_start_that_fails_leaves_nothing_it_made(here: Path, inside: dict[str, str]) -> None:
    folder = here / "a" / "run"
    if inside:
        folder.mkdir(parents=True)
        for name, text in inside.items():
            (folder / name).write_text(text)
    with pytest.raises(UserError, match="too bad"), kept(claim_new(str(folder), "x")):
        (folder / "config.yaml").write_text(OLD_CONFIG)
        (folder / "checkpoints").mkdir()
        raise UserError("too bad")
    if not inside:
        assert not (here / "a").exists()
    elif "log.txt" in inside:
        assert os.listdir(folder) == ["log.txt"]
    else:
        assert contents(folder) == {"config.yaml": OLD_CONFIG.encode()}
    claim_new(str(folder), "x").release()


def test_a_loss_that_diverged_keeps_its_metrics_and_the_directory_is_free(here: Path) -> None:
    with pytest.raises(UserError), kept(claim_new("run", "x")):
        Path("run/config.yaml").write_text(OLD_CONFIG)
        Path("run/metrics.csv").write_text("step,train/loss\n0,1.0\n")
        raise UserError("the loss is not finite")
    assert Path("run/metrics.csv").is_file()
    claim_new("run", "x").release()
    assert not Path("run/metrics.csv").exists()


def test_what_a_killed_start_has_left_is_replaced_but_for_its_config_yaml(here: Path) -> None:
    folder = here / "run"
    lock = FileLock(claim_new("run", "x").folder / ".lock")
    lock.path.unlink()
    for start in range(2):
        with pytest.raises(UserError), kept(claim_new("run", "x")):
            assert not (folder / "metrics.csv").exists()
            raise UserError("too bad")
        assert sorted(contents(folder)) == [".lock", "config.yaml", "config.yaml.1"][: 3 * start]
        # What is there after a SIGKILL.
        lock.path.parent.mkdir(exist_ok=True)
        lock.acquire()
        lock.release()
        for name in ("config.yaml", "config.yaml.1", "metrics.csv"):
            (folder / name).write_text(OLD_CONFIG)


@pytest.mark.parametrize(
    "names",
    [
        ["report.html", "metrics.csv", "summary.json", "predictions.csv", "model/config.json"],
        ["metrics.csv"],
        ["config.yaml"],
        ["notes.txt"],
        [".git/HEAD"],
        ["checkpoints/weights.pt"],
    ],
)
def test_files_of_the_users_own_are_refused_and_stay(here: Path, names: list[str]) -> None:
    for name in names:
        (here / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "mine" / name).write_text("name: mine\n")
    before = contents(here / "mine")
    with pytest.raises(UserError, match=r"run_dir=mine .*choose another --run_dir$"):
        claim_new("mine", "x")
    assert contents(here / "mine") == before
    (here / "runs").mkdir()
    (here / "mine").rename(here / "runs" / "mine")
    claim = claim_new(None, "mine")
    assert claim.folder == Path("runs/mine-2")
    claim.release()
    assert contents(here / "runs" / "mine") == before


def test_a_file_is_no_run_directory(here: Path) -> None:
    Path("run").write_text("")
    with pytest.raises(UserError, match="run_dir=run is a file"):
        claim_new("run", "x")


def test_orphans_of_a_killed_writer_go_and_other_hidden_files_stay(here: Path) -> None:
    folder = here / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(OLD_CONFIG)
    last = folder / "checkpoints" / "last.ckpt"
    last.write_bytes(b"x")
    orphans = [".last.0123abcd.ckpt", ".best.deadbeef.ckpt"]
    for name in [*orphans, ".keep"]:
        (folder / "checkpoints" / name).write_bytes(b"x")
    (folder / ".report.0123abcd.html").write_bytes(b"x")
    claim = claim_resumed(last, folder)
    assert sorted(os.listdir(folder / "checkpoints")) == [".keep", "last.ckpt"]
    assert sorted(os.listdir(folder)) == [".lock", "checkpoints", "config.yaml"]
    claim.release()


def test_a_resume_into_another_run_or_a_download_folder_is_refused(here: Path) -> None:
    for name in ("a", "b"):
        (here / name / "checkpoints").mkdir(parents=True)
        (here / name / "config.yaml").write_text(OLD_CONFIG)
        (here / name / "checkpoints" / "last.ckpt").write_bytes(b"x")
    last = here / "a" / "checkpoints" / "last.ckpt"
    with pytest.raises(UserError, match="already holds a run"):
        claim_resumed(last, here / "b")
    (here / "downloads").mkdir()
    (here / "downloads" / "a.ckpt").write_bytes(b"x")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        claim_resumed(here / "downloads" / "a.ckpt", here / "downloads")
    claim = claim_resumed(last, here / "new")
    assert claim.fresh and (here / "new").is_dir()
    claim.release()


def test_checkpoints_may_be_a_link_to_another_disk(here: Path) -> None:
    (here / "disk").mkdir()
    (here / "disk" / "last.ckpt").write_bytes(b"x")
    (here / "run").mkdir()
    (here / "run" / "config.yaml").write_text(OLD_CONFIG)
    (here / "run" / "checkpoints").symlink_to(here / "disk")
    claim = claim_resumed(here / "run" / "checkpoints" / "last.ckpt", here / "run")
    assert isinstance(claim, Claim) and not claim.fresh
    claim.release()


def test_a_forked_worker_does_not_keep_the_lock_of_a_killed_owner(here: Path, deadline) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from vit.locking import FileLock\n"
        "FileLock(Path('lock')).acquire()\n"
        "if os.fork() == 0: time.sleep(600)\n"
        "else: print('locked', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "locked\n"
        with pytest.raises(Locked):
            FileLock(here / "lock").acquire()
        owner.kill()
        owner.wait()
        with FileLock(here / "lock", wait_seconds=deadline(10)):
            pass
    finally:
        os.killpg(owner.pid, 9)


def test_a_lock_on_a_deleted_file_is_none(here: Path) -> None:
    first = FileLock(here / "lock")
    first.acquire()
    (here / "lock").unlink()
    second = FileLock(here / "lock")
    second.acquire()  # a file of its own
    with pytest.raises(Locked):
        FileLock(here / "lock").acquire()
    first.release()
    second.release()


def test_a_start_that_failed_can_be_repeated_and_corrected(vit: Vit, photos: Path) -> None:
    args = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, *SHORT, "--run_dir=run")
    wrong = "--data.image_size=15"
    first, second = vit(*args, wrong), vit(*args, wrong)
    assert first.status == 2 and first == second
    assert not Path("run").exists()
    assert vit(*args).status == 0
    again = vit(*args, "--resume=never")
    assert again.status == 2
    assert again.err == (
        "vit: run_dir=run already holds a run: add --ckpt_path last to continue it, or choose "
        "another --run_dir\n"
    )


@pytest.mark.parametrize("wrong", [True, False])
def test_a_recipe_in_its_run_directory_is_not_lost(vit: Vit, photos: Path, wrong: bool) -> None:
    args = ("fit", "--data.root", photos, *TINY, *SHORT)
    printed = vit(*args, "-c", "cifar10", "--print_config")
    assert printed.status == 0
    recipe = Path("run/config.yaml")
    recipe.parent.mkdir()
    recipe.write_text("# mine\n" + printed.out)
    before = contents(recipe.parent)
    more = ("--data.image_size=15",) if wrong else ()
    done = vit(*args, "-c", recipe, "--run_dir=run", *more)
    if wrong:
        assert done.status == 2 and contents(recipe.parent) == before
    else:
        assert done.status == 0
        assert Path("run/config.yaml.1").read_bytes() == before["config.yaml"]
        assert Path("run/model/config.json").is_file()


def test_an_optimizer_that_does_not_fit_leaves_no_run(vit: Vit, photos: Path) -> None:
    args = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, *SHORT, "--run_dir=run")
    assert vit(*args).status == 0
    frozen = [arg for arg in args if not str(arg).startswith("--model.")]
    frozen[-1] = "--run_dir=frozen"
    more = ("--model.pretrained=run", "--model.learning.freeze_backbone=true")
    muon = "--model.optimizer={class_path: vit.training.optimizers.MuonWithAdamW}"
    done = vit(*frozen, *more, muon)
    if done.status:  # it may be able to train a head alone
        assert done.status == 2 and "Traceback" not in done.err
        assert not Path("frozen").exists()


def test_a_run_of_the_users_own_folder_changes_nothing(vit: Vit, photos: Path) -> None:
    (photos.parent / "report.html").write_text("mine")
    args = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, *SHORT, "--run_dir=.")
    done = vit(*args)
    assert done.status == 2
    assert "run_dir=. is not empty and holds no run (my photos, report.html)" in done.err
    assert sorted(os.listdir()) == ["my photos", "report.html"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--run_dir=shared",)])
def test_two_runs_that_start_together_never_share_a_directory(
    options: tuple[str, ...], photos: Path, deadline
) -> None:
    args = ["fit", "-c", "cifar10", "--data.root", str(photos), *TINY, *SHORT, *options]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "vit", *args, f"--seed_everything={seed}"],
            cwd=photos.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    errors = [process.communicate(timeout=deadline(200))[1] for process in processes]
    statuses = [process.returncode for process in processes]
    if not options:
        assert statuses == [0, 0], errors
        seeds = set()
        for name in ("cifar10", "cifar10-2"):
            folder = photos.parent / "runs" / name
            recipe = json.loads((folder / "model" / "config.json").read_text())["extra"]["recipe"]
            assert (
                f"seed_everything: {recipe['seed_everything']}\n"
                in (folder / "config.yaml").read_text()
            )
            seeds.add(recipe["seed_everything"])
        assert seeds == {0, 1}
    else:
        assert sorted(statuses) == [0, 2], errors
        [line] = errors[statuses.index(2)].splitlines()
        assert line.startswith("vit: run_dir=shared ") and "choose another --run_dir" in line
