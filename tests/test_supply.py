"""What .ci/ installs: a lock that fits pyproject.toml, and a row for each version."""

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from shutil import which

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
LOCK = (ROOT / ".ci/requirements.lock").read_text(encoding="utf-8")
PINS = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.M))
EXTRAS = {"dev", "peers"}


def requirements(lines: list[str]) -> Iterator[Requirement]:
    """The requirements of other packages, with those of the extras of this one that they name."""
    for requirement in map(Requirement, lines):
        if canonicalize_name(requirement.name) != PROJECT["name"]:
            yield requirement
        for extra in requirement.extras if requirement.name == PROJECT["name"] else ():
            yield from requirements(PROJECT["optional-dependencies"][extra])


def test_the_lock_holds_each_requirement_at_a_version_that_it_allows() -> None:
    lines = [f"{PROJECT['name']}[{','.join(EXTRAS)}]", *PROJECT["dependencies"]]
    wanted = list(requirements(lines + PYPROJECT["build-system"]["requires"]))
    assert {"torch", "timm", "pytest", "ruff", "hatchling"} <= {item.name for item in wanted}
    for item in wanted:
        version = PINS[canonicalize_name(item.name)]
        assert item.specifier.contains(version), f"{item}: {version} in .ci/requirements.lock"


def test_each_line_of_the_lock_is_a_version_with_digests_of_wheels() -> None:
    text = re.sub(r"^\s*#.*\n|\\\n", "", LOCK, flags=re.M)
    options, _, packages = text.partition("\n\n")
    assert options == "--only-binary :all:"  # a source archive would be built, with what it likes
    pattern = r"[\w.-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+"
    assert [line for line in packages.splitlines() if not re.fullmatch(pattern, line.strip())] == []
    assert len(PINS) == len(packages.splitlines())


def test_the_command_in_the_head_of_the_lock_is_one_that_anybody_can_type() -> None:
    [line] = re.findall(r"^#    (uv pip compile .*)$", LOCK, re.M)
    words = shlex.split(line)
    assert {words[i + 1] for i, word in enumerate(words) if word == "--extra"} == EXTRAS
    assert {"--generate-hashes", "--only-binary"} <= set(words)
    date.fromisoformat(words[words.index("--exclude-newer") + 1])
    paths = [word for word in words if "/" in word or (ROOT / word).is_file()]
    assert paths == ["pyproject.toml", ".ci/requirements.lock"]
    version = words[words.index("--python-version") + 1]
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert f"linux-x86_64 ({version.replace('.', ', ')})" in script
    assert f"--require-hashes -r {paths[1]}" in script


TOOLS = ("bash", "cat", "cp", "dirname", "grep", "mkdir", "mktemp", "rm", "sed", "sort", "tail")
PYTHON = """\
#!BASH
case "$*" in
  "-m venv environment") mkdir -p environment/bin; cp "$0" environment/bin/python ;;
  "-m pip install"*) echo "$0: $*" >> LOG; echo "$*" > environment/installed ;;
  "-m pip show torch") grep -q "torch==2.11.\\*" environment/installed && echo "Version: 2.11.0" ||
    echo "Version: 2.14.1" ;;
  *) [ "$*" != "FAULT" ] || { echo "no such thing"; exit 3; } ;;
esac
"""
"""A Python that does nothing, but fails at the words FAULT."""


def versions(folder: Path, faults: dict[str, str]) -> tuple[int, list[list[str]]]:
    """Status and rows of .ci/versions on a PATH with these Pythons, each with its fault, alone."""
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(which(tool) or tool)
    for name, fault in faults.items():
        text = PYTHON.replace("BASH", str(folder / "bash")).replace("LOG", str(folder / "log"))
        (folder / name).write_text(text.replace("FAULT", fault))
        (folder / name).chmod(0o755)
    command = [folder / "bash", ROOT / ".ci/versions"]
    variables = {**os.environ, "PATH": str(folder), "TMPDIR": str(folder)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.stderr == ""
    assert not list(folder.glob("tmp*"))
    return done.returncode, [line.split() for line in done.stdout.splitlines()]


def test_each_python_has_a_row_and_the_oldest_torch_one(tmp_path: Path) -> None:
    faults = {"python3.10": "", "python3.11": "-", "python3.12": "-", "python3.13": "-c "}
    status, rows = versions(tmp_path / "bin", faults)
    newest = [[name, "torch", "2.14.1", "ok"] for name in ("python3.11", "python3.12")]
    assert (status, rows) == (0, [*newest, ["python3.11", "torch", "2.11.0", "ok"]])
    installed = (tmp_path / "bin/log").read_text().splitlines()
    assert [f"install {ROOT}" in line for line in installed] == [True] * 3
    assert [line.split()[5:] for line in installed] == [
        [],
        [],
        ["torch==2.11.*", "torchvision==0.26.*"],
    ]


def test_a_version_that_fails_is_a_row_and_the_status(tmp_path: Path) -> None:
    status, rows = versions(tmp_path / "bin", {"python3.11": "-m vit test run", "python3.12": "-"})
    assert status == 1
    assert [(row[0], row[3]) for row in rows if row[0].startswith("python")] == [
        ("python3.11", "FAILED"),
        ("python3.12", "ok"),
        ("python3.11", "FAILED"),
    ]
    assert rows[1] == ["no", "such", "thing"]
