"""The rules of the house that a short test can check."""

import ast
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

import vit

PACKAGE = Path(vit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Room -> what its modules may import of this package. `cli` may import everything.
MAY_IMPORT = {
    "models": set(),
    "data": set(),
    "inspection": set(),
    "checkpoints": {"models"},
    "inference": {"models", "checkpoints", "data"},
    "training": {"models", "checkpoints"},
    "evaluation": {"models", "checkpoints", "data", "inference"},
    # A model may be named by a file of weights, whose configuration `checkpoints` reads; the
    # catalog has the size of a data set by name.
    "compute": {"models", "checkpoints", "data"},
    "transfer": {"data", "training", "evaluation", "checkpoints", "compute", "reports"},
}
# Modules of one page beside the rooms, which every room may import.
ONE_PAGE = {
    "cache",
    "calibration",  # one error for training's metric, for evaluation and for a report
    "errors",
    "hardware",
    "locking",
    "logistic",  # a head before fine-tuning and a probe of frozen features are one minimum
    "old_names",
    "progress",
    "ranges",
    "ranking",
    "reading",
    "recipes",
    "seeds",  # of training's steps and of the data's samples
    "shapes",
    "signals",
    "yaml_reader",
    "writing",
}
HEAVY = {
    "models": {"lightning", "torchvision", "PIL", "torchmetrics", "numpy"},
    "inspection": {"lightning", "torchvision"},
    "inference": {"lightning", "torchvision", "torchmetrics"},
    "compute": {"lightning"},
}


def imports(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    names = imports(path)
    if room in MAY_IMPORT:
        rooms = {name.split(".")[1] for name in names if name.startswith("vit.")}
        assert rooms <= MAY_IMPORT[room] | {room, *ONE_PAGE}
    assert not {name.split(".")[0] for name in names} & HEAVY.get(room, set())
    assert "timm" not in {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "base", "factory", "engine"}


def test_import_is_silent_and_light() -> None:
    code = "import sys, vit; print(sorted({'torch','lightning','torchvision'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert result.stdout.strip() == b"[]"
    assert result.stderr == b""


def test_every_public_name_resolves() -> None:
    for name in vit.__all__:
        assert getattr(vit, name).__doc__


def test_every_config_field_is_documented() -> None:
    from vit.models.config import ResNetConfig, ViTConfig

    source = ast.parse((PACKAGE / "models" / "config.py").read_text())
    for config in (ViTConfig, ResNetConfig):
        body = next(
            n.body for n in source.body if isinstance(n, ast.ClassDef) and n.name == config.__name__
        )
        documented = {
            a.target.id
            for a, b in pairwise(body)
            if isinstance(a, ast.AnnAssign)
            and isinstance(a.target, ast.Name)
            and isinstance(b, ast.Expr)
        }
        assert documented == {field.name for field in fields(config)}
