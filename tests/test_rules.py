"""Rules for the structure of the package: a core, and extensions that it does not know."""

import ast
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

import vit
from vit.tables import TABLES

PACKAGE = Path(vit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
EXTENSION_FILES = [path for path in FILES if path.is_relative_to(PACKAGE / "extensions")]
CORE = [path for path in FILES if path not in EXTENSION_FILES]
"""What tells the story of a network that is trained or fine-tuned on a folder of photos, resumed,
scored and used."""

# Room of the core -> (rooms that it may import, beside the one-page modules; most lines).
ROOMS: dict[str, tuple[set[str], int]] = {
    "models": (set(), 1_894),
    "weights": ({"models"}, 1_931),
    "data": (set(), 3_942),
    "inference": ({"data", "models", "weights"}, 512),
    "training": ({"models", "weights"}, 2_939),
}
ROOMS["runs"] = (set(ROOMS), 2_802)
ROOMS["cli"] = (set(ROOMS), 798)
MAY_IMPORT = {room: others for room, (others, _) in ROOMS.items()}
LINES = {room: lines for room, (_, lines) in ROOMS.items()} | {"one-page modules": 1_926}
CORE_LINES = 16_744
"""Ceilings only fall. One is met by removing mechanisms, never by denser lines."""
# One-page modules in vit/, which every room may import.
ONE_PAGE = {
    "cache",
    "console",
    "confidence",  # shared by inference, runs and evaluation
    "errors",
    "facts",  # which data gives, and training takes
    "fine_tuning",  # shared by training and the cost of a recipe
    "exit",
    "hardware",
    "label_tree",  # shared by data, inference, runs and reports
    "preprocessing",
    "logistic",  # shared by the head before fine-tuning and the probe
    "ranking",
    "recipes",
    "seeds",  # for training steps and samples
    "shapes",
    "signals",
    "tables",  # rows of what is added to the core
    "yaml_reader",
    "writing",
}
# Extension -> other extensions that it may import.
EXTENSIONS: dict[str, set[str]] = {
    "formats": set(),
    "sources": set(),
    "recipes": set(),
    "adaptation": set(),
    "pretraining": {"reports"},
    "variants": set(),
    "evaluation": {"formats", "reports", "serving"},
    "datacheck": {"evaluation", "formats", "reports", "sources", "transfer"},
    "trust": {"reports"},
    "transfer": {"evaluation", "serving"},
    "serving": {"formats", "reports"},
    "inspection": {"reports"},
    "reports": set(),
    "compute": {"reports"},
    "scale": set(),
    "doctor": set(),
}
EXTENSION_LINES = {"formats": 3_752, "evaluation": 2_400, "variants": 2_400, "serving": 2_100}
"""Most lines of an extension; 1,950 of the others."""
EDGES: dict[tuple[str, str], str] = {
    ("data/module.py", "vit.extensions.recipes.extra"): "a class path",
    ("data/module.py", "vit.extensions.transfer.pseudo"): "a class path",
    ("data/transforms.py", "vit.extensions.recipes.extra"): "a class path",
    ("data/transforms.py", "vit.extensions.recipes.randaugment"): "a class path",
    ("runs/finish.py", "vit.extensions.inspection.looks"): "a finisher",
    ("runs/finish.py", "vit.extensions.reports.pretraining"): "a finisher",
    ("runs/finish.py", "vit.extensions.reports.results"): "a finisher",
    ("runs/finish.py", "vit.extensions.trust.measuring"): "the core's own temperature",
    ("runs/first_batch.py", "vit.extensions.reports.figures"): "a finisher",
}
"""(file of the core, module of an extension that it imports) -> what takes its place. The list only
gets shorter."""
HEAVY = {
    "models": {"lightning", "torchvision", "PIL", "torchmetrics", "numpy"},
    "variants": {"lightning", "torchvision", "PIL", "torchmetrics", "numpy"},
    "reports": {"lightning", "torchvision"},
    "inference": {"lightning", "torchvision", "torchmetrics"},
    "inspection": {"lightning", "torchvision", "torchmetrics"},
    "compute": {"lightning"},
}
"""Room or extension -> libraries that it does without."""


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def room_of(path: Path) -> str:
    """The room of the core, the extension, or the name of a one-page module."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[1] if parts[0] == "extensions" else parts[0]


def imports(path: Path) -> set[str]:
    """Dotted names of what a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def extensions_in(names: set[str]) -> set[str]:
    return {name.split(".")[2] for name in names if name.startswith("vit.extensions.")}


def edges() -> set[tuple[str, str]]:
    """(file of the core, module of an extension) of each import and each string that names one."""
    pairs = set()
    for path in CORE:
        if path.name not in ("tables.py", "__init__.py"):
            text = path.read_text()
            assert "vit.extensions" not in re.sub(r"(from|import) vit\.extensions", "", text), path
            modules = re.findall(r"from (vit\.extensions[\w.]*) import", text)
            pairs |= {(shown(path), module) for module in modules}
    return pairs


def test_the_core_imports_of_extensions_what_is_listed() -> None:
    assert edges() == EDGES.keys()
    assert len(EDGES) <= 10


def test_the_core_only_gets_smaller() -> None:
    assert sum(len(path.read_text().splitlines()) for path in CORE) <= CORE_LINES


def test_every_folder_and_module_of_the_package_is_in_the_tables() -> None:
    places = [path.relative_to(PACKAGE) for path in FILES]
    assert {path.parts[0] for path in places if len(path.parts) > 1} == {*MAY_IMPORT, "extensions"}
    modules = {path.stem for path in places if len(path.parts) == 1}
    assert modules == ONE_PAGE | {"__init__", "__main__"}
    folders = {path.name for path in (PACKAGE / "extensions").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == EXTENSIONS.keys()


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_imports_point_one_way(path: Path) -> None:
    room, names = room_of(path), imports(path)
    rooms = {name.split(".")[1] for name in names if name.startswith("vit.")}
    packages = {name.split(".")[0] for name in names}
    assert not packages & HEAVY.get(room, set())
    assert "timm" not in packages
    if path in EXTENSION_FILES:
        assert extensions_in(names) <= EXTENSIONS.get(room, set()) | {room}
        assert "cli" not in rooms or path.stem.startswith("cli_")
    elif room in ONE_PAGE:
        assert rooms <= ONE_PAGE
    elif room in MAY_IMPORT:
        assert rooms <= MAY_IMPORT[room] | {room, "extensions", *ONE_PAGE}  # which EDGES lists


def test_extensions_import_each_other_without_circles() -> None:
    left = dict(EXTENSIONS)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        left = {name: others for name, others in left.items() if name not in free}
    assert left == {}


def test_an_extension_says_what_it_adds_and_where_its_page_is() -> None:
    for name in EXTENSIONS:
        text = (PACKAGE / "extensions" / name / "__init__.py").read_text()
        pages = re.findall(r"docs/\w+\.md", ast.get_docstring(ast.parse(text)) or "")
        assert pages and all((PACKAGE.parent / page).is_file() for page in pages), name


def test_no_command_imports_another() -> None:
    modules = {row.partition(":")[0] for row in TABLES["commands"].values()}
    assert len(modules) > 10
    for module in modules:
        names = imports(PACKAGE.parent / f"{module.replace('.', '/')}.py")
        assert not {name.rpartition(".")[0] for name in names} & modules, module


@pytest.mark.parametrize("room", LINES)
def test_a_room_keeps_to_its_budget_of_lines(room: str) -> None:
    files = (PACKAGE / room).rglob("*.py") if room in ROOMS else PACKAGE.glob("*.py")
    assert 100 < sum(len(path.read_text().splitlines()) for path in files) <= LINES[room]


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_keeps_to_its_budget_of_lines(name: str) -> None:
    files = (PACKAGE / "extensions" / name).rglob("*.py")
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert 100 < lines <= EXTENSION_LINES.get(name, 1_950)


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "base", "factory", "engine"}


def test_no_name_of_a_file_is_twice_in_the_core_or_in_an_extension() -> None:
    core = [path.stem for path in CORE if room_of(path) != "cli" and path.stem != "__init__"]
    assert [name for name, count in Counter(core).items() if count > 1] == []
    pairs = Counter((room_of(path), path.stem) for path in EXTENSION_FILES)
    assert [pair for pair, count in pairs.items() if count > 1] == []


@pytest.mark.parametrize("room", ["models", "inference", "extensions/inspection"])
def test_attention_alone_names_private_operators_of_pytorch(room: str) -> None:
    for path in set((PACKAGE / room).rglob("*.py")) - {PACKAGE / "models" / "attention.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if re.fullmatch(r"torch(\.\w+)+", name):
                assert "._" not in name and ".ops" not in name, f"{path}:{node.lineno}: {name}"


def test_one_module_ends_a_process() -> None:
    names = {path.name: re.findall(r"\bos\._exit\b", path.read_text()) for path in FILES}
    assert {name: uses for name, uses in names.items() if uses} == {"exit.py": ["os._exit"]}


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
