"""Commands are completed in bash, zsh and fish by scripts that shtab makes of their parsers."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.command import Vit, vit
from vit.extensions.words.cli_completion import SHELLS, script
from vit.models.zoo import list_models
from vit.recipes import list_recipes
from vit.runs.records import HEADER

__all__ = ["vit"]

COMMAND = f'vit() {{ {sys.executable} -m vit "$@"; }}\n'
BASH = """\
COMP_WORDS=(vit {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
_shtab_vit; printf '%s,' "${{COMPREPLY[@]}}"; echo
"""
LINES = {
    "cla": "classify",
    "fit --data.augment.cr": "--data.augment.crop,--data.augment.crop_area,"
    "--data.augment.crop_padding",
    "fit --model.loss.label": "--model.loss.label_smoothing",
    "fit -c fin": "finetune",
    "fit --arch vit_s": "vit_s16,vit_s32",
    "fit --pretrained dinov2_s14.": "dinov2_s14.lvd142m",
    "classify runs/p": "runs/photos",
    "classify runs/photos pho": "photo.jpg",
    "test runs/photos --split t": "test,train",
    "data ch": "check",
}
"""Words behind vit -> what the last one is completed to."""


def test_the_scripts_are_those_that_shtab_makes() -> None:
    pytest.importorskip("shtab", reason="of the extra dev")
    from tests.extensions.words.scripts import scripts

    for shell, text in scripts().items():
        assert script(shell).read_text() == text, "python -m tests.extensions.words.scripts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run and a picture."""
    (tmp_path / "runs/photos").mkdir(parents=True)
    (tmp_path / "runs/photos/config.yaml").write_text(HEADER)
    (tmp_path / "runs/other").mkdir()
    (tmp_path / "runs/other/config.yaml").write_text("data: {}\n")
    (tmp_path / "photo.jpg").touch()
    return tmp_path


def shell(folder: Path, *command: str, text: str) -> list[str]:
    """The lines that a shell prints of a script."""
    done = subprocess.run(command, input=text, cwd=folder, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout.splitlines()


def test_bash_completes_commands_options_and_names(folder: Path) -> None:
    typed = "".join(BASH.format(words=words) for words in LINES)
    text = f"{COMMAND}source {script('bash')}\n{typed}"
    assert sets(shell(folder, "bash", "--norc", "-s", text=text)) == sets(LINES.values())


def test_bash_executes_no_name_of_a_run_and_does_not_split_it(folder: Path) -> None:
    names = ["runs/odd/$(touch PWNED)", "runs/odd/`touch PWNED`", "runs/odd/with a blank"]
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.yaml").write_text(HEADER)
    text = f"{COMMAND}source {script('bash')}\n{BASH.format(words='test runs/od')}"
    assert sets(shell(folder, "bash", "--norc", "-s", text=text)) == [{"runs/odd", *names}]
    assert not (folder / "PWNED").exists()


def sets(lines: Iterable[str]) -> list[set[str]]:
    """The words of each line, folders without a slash."""
    return [{word.rstrip("/") for word in line.split(",")} - {""} for line in lines]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_options_and_names(folder: Path) -> None:
    typed = "".join(
        f"complete -C 'vit {words}' | string replace -r '\\t.*' '' | string join ,\n"
        for words in LINES
    )
    text = f"function vit; {sys.executable} -m vit $argv; end\nsource {script('fish')}\n{typed}"
    assert sets(shell(folder, "fish", "--no-config", text=text)) == sets(LINES.values())


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_the_script(folder: Path) -> None:
    text = f'autoload -Uz compinit; compinit -D -u\neval "$(cat {script("zsh")})"\n'
    assert shell(folder, "zsh", "-f", text=f"{text}print $_comps[vit]") == ["_shtab_vit"]


def test_the_command_prints_the_script_of_a_shell(vit: Vit) -> None:
    for name in SHELLS:
        assert vit("completion", name).out == script(name).read_text()
    done = vit("completion", "tcsh")
    assert done.status == 2 and "invalid choice: 'tcsh'" in done.err
    assert vit("complete", "recipes").out.split() == [*list_recipes()]


def test_names_are_printed_without_torch(folder: Path, vit: Vit) -> None:
    published = json.loads(vit("models", "--weights", "--json").out)
    code = (
        "import sys; from vit.cli.main import main; "
        "status = main(['completion', 'runs', 'models', 'weights', 'recipes']); "
        "print(status, 'torch' in sys.modules)"
    )
    *names, last = shell(folder, sys.executable, "-c", code, text="")
    assert last == "0 False"
    weights = sorted(row["name"] for row in published)
    assert names[0] == "runs/photos" and len(weights) > 50
    assert sorted(names[1:]) == sorted([*list_models(), *weights, *list_recipes()])
