"""One run, one directory: who gets it, what a failed start leaves, what of the user's is safe."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import TINY, Vit, contents
from vit.errors import UserError
from vit.runs.directory import RunDirectory, run_name
from vit.runs.processes import HANDED_DOWN
from vit.runs.records import HEADER
from vit.runs.short_names import Words

SHORT = ("--trainer.max_steps=1", "--final_split=none")


def options(run_dir: str | None = None, resume: str = "auto", **data: Any) -> Any:
    """What RunDirectory reads of parsed options."""
    config = SimpleNamespace(
        run_dir=run_dir,
        resume=resume,
        trainer=SimpleNamespace(fast_dev_run=False),
        data=SimpleNamespace(root=data.get("root"), dataset=data.get("dataset")),
    )
    recorded = {"trainer": {"precision": None}}
    return SimpleNamespace(
        config=config,
        recipe=data.get("recipe", "digits"),
        recipes=[
            {
                "data": data.get("of_recipe")
                or ({} if {"root", "dataset"} & data.keys() else {"dataset": 1})
            }
        ],
        recorded=lambda: recorded,
        recorded_text=lambda: "trainer: {precision: null}\n",
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(photos: Path) -> tuple[str, ...]:
    return ("fit", "-c", "cifar10", "--data.root", str(photos), *TINY, *SHORT)


def refuse(run_options: Any, words: str) -> None:
    """Opening the directory is refused with these words."""
    with pytest.raises(UserError, match=words), RunDirectory.open(run_options):
        pass


def test_a_directory_that_is_written_to_is_refused_with_the_writer(here: Path) -> None:
    with RunDirectory.open(options("run")):
        refuse(options("run"), rf"run .*process {os.getpid()} on ")
    with RunDirectory.open(options("run")):
        pass


def test_default_names_move_on_while_a_run_has_not_written_anything(here: Path) -> None:
    with RunDirectory.open(options()) as a, RunDirectory.open(options()) as b:
        assert [a.folder, b.folder] == [Path("runs/digits"), Path("runs/digits-2")]
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (
            {"recipe": "imagenet1k/vit_b16", "root": "x/", "of_recipe": {"dataset": "imagenet"}},
            "imagenet1k_vit_b16",
        ),
        ({"recipe": "finetune", "root": "~/photos.v2/"}, "photos.v2-finetune"),
        ({"recipe": "finetune", "root": "list.csv"}, "list-finetune"),
        ({"recipe": "probe", "dataset": "digits"}, "digits-probe"),
    ],
)
def test_a_run_has_the_name_of_its_recipe_or_of_its_data(
    given: dict[str, Any], name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(here))
    (here / "photos.v2").mkdir()
    assert run_name(options(**given)) == name


def test_other_processes_take_the_decision_of_the_first(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunDirectory.open(options("run")):
        monkeypatch.setenv("LOCAL_RANK", "1")
        with RunDirectory.open(options("elsewhere")) as child:
            assert child.folder == Path("run")
    assert HANDED_DOWN not in os.environ and not Path("elsewhere").exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_start_that_fails_leaves_nothing_it_made(here: Path, exists: bool) -> None:
    folder = here / "a" / "run"
    if exists:
        folder.mkdir(parents=True)
    with pytest.raises(UserError, match="too bad"), RunDirectory.open(options(str(folder))):
        raise UserError("too bad")
    assert (here / "a").exists() == exists
    assert not exists or not contents(folder)


def test_a_killed_start_is_replaced(here: Path) -> None:
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/config.yaml").write_text(HEADER)
    Path("run/metrics.csv").write_text("step\n")
    with RunDirectory.open(options("run")) as run:
        assert run.checkpoint is None and not run.finished


@pytest.mark.parametrize(
    "names",
    [
        ["report.html", "metrics.csv", "summary.json", "predictions.csv", "model/config.json"],
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
    for resume in ("auto", "never"):
        refuse(options("mine", resume), r"run_dir=mine .*choose another --run_dir$")
    (here / "runs").mkdir()
    (here / "mine").rename(here / "runs" / "mine")
    with RunDirectory.open(options(recipe="mine")) as run:
        assert run.folder == Path("runs/mine-2")
    assert contents(here / "runs" / "mine") == before


def test_what_is_no_run_is_named(here: Path) -> None:
    Path("photo.jpg").write_bytes(b"x")
    Path("folder").mkdir()
    refuse(options("photo.jpg"), "run directory photo.jpg cannot be written to: File exists")
    for place in ("missing", "photo.jpg", "folder", "missing.ckpt"):
        with pytest.raises(UserError, match=f"--resume {place}"):
            print(Words([f"--resume={place}"]).run)


def test_orphans_of_a_killed_writer_go_and_other_hidden_files_stay(here: Path) -> None:
    folder = here / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(HEADER)
    for name in (".last.0123abcd.ckpt", ".best.deadbeef.ckpt", ".keep"):
        (folder / "checkpoints" / name).write_bytes(b"x")
    (folder / ".report.0123abcd.html").write_bytes(b"x")
    with RunDirectory.open(options("run")):
        assert os.listdir(folder / "checkpoints") == [".keep"]
        assert sorted(os.listdir(folder)) == [".lock", "checkpoints", "config.yaml"]


def test_a_start_that_failed_can_be_repeated_and_corrected(
    vit: Vit, command: tuple[str, ...]
) -> None:
    optimizer = "--model.optimizer={class_path: torch.optim.SGD, init_args: {lr: -1}}"
    for wrong in ("--data.image_size=15", optimizer):
        first, second = (vit(*command, "--run_dir=run", wrong) for _ in range(2))
        assert first.status == 2 and first == second
        assert not Path("run").exists()
    assert vit(*command, "--run_dir=run").status == 0
    again = vit(*command, "--run_dir=run", "--resume=never")
    assert again.status == 2 and "run already holds a run" in again.err
