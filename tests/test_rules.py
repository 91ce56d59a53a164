"""Rules for the structure of the package: a core, and extensions that it does not know."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import vit
from tests.command import coloured, saved
from vit.tables import TABLES

PACKAGE = Path(vit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
EXTENSION_FILES = [path for path in FILES if path.is_relative_to(PACKAGE / "extensions")]
CORE = [path for path in FILES if path not in EXTENSION_FILES]
"""What tells the story of a network that is trained or fine-tuned on a folder of photos, resumed,
scored and used."""

# Room of the core -> (rooms that it may import, beside the one-page modules; most lines).
ROOMS: dict[str, tuple[set[str], int]] = {
    "models": (set(), 1_752),
    "weights": ({"models"}, 1_671),
    "data": (set(), 3_571),
    "inference": ({"data", "models", "weights"}, 465),
    "training": ({"models", "weights"}, 2_666),
}
ROOMS["runs"] = (set(ROOMS), 2_511)
ROOMS["cli"] = (set(ROOMS), 693)
MAY_IMPORT = {room: others for room, (others, _) in ROOMS.items()}
LINES = {room: lines for room, (_, lines) in ROOMS.items()} | {"one-page modules": 1_877}
CORE_LINES = 15_206
"""Ceilings only fall. One is met by removing mechanisms, never by denser lines."""
# One-page modules in vit/, which every room may import.
ONE_PAGE = {
    "console",
    "confidence",  # shared by inference, runs and evaluation
    "errors",
    "facts",  # which data gives, and training takes
    "fine_tuning",  # shared by training and the cost of a recipe
    "hardware",
    "label_tree",  # shared by data, inference, runs and reports
    "preprocessing",
    "logistic",  # shared by the head before fine-tuning and the probe
    "recipes",
    "seeds",  # for training steps and samples
    "shapes",
    "signals",
    "synonyms",  # asked by the command line and by public classes
    "tables",  # rows of what is added to the core
    "writing",
}
# Extension -> other extensions that it may import.
EXTENSIONS: dict[str, set[str]] = {
    "formats": set(),
    "backbones": {"formats"},
    "huggingface": {"formats"},
    "sources": {"serving"},
    "openers": set(),
    "recipes": set(),
    "adaptation": {"licences", "text"},
    "pretraining": {"reports"},
    "ssl": {"evaluation", "pretraining", "recipes", "reports", "serving"},
    "variants": set(),
    "multilabel": set(),
    "evaluation": {"backbones", "formats", "multilabel", "reports", "serving", "sources"},
    "datacheck": {"evaluation", "formats", "reports", "serving", "sources", "transfer"},
    "trust": {"reports"},
    "transfer": {"answers", "evaluation", "licences", "serving", "sources"},
    "folds": {"evaluation", "multilabel", "sources", "transfer"},
    "licences": {"formats"},
    "serving": {"backbones", "compute", "formats", "licences", "reports"},
    "answers": {"serving"},
    "inspection": {"backbones", "reports", "serving"},
    "serve": {"openers", "serving"},
    "reports": set(),
    "compute": {"reports"},
    "scale": set(),
    "doctor": {"reports"},
    "notebook": {"backbones", "reports", "serving"},
    "words": set(),
    "averaging": {"evaluation", "licences", "multilabel", "sources"},
    "towers": {"formats"},
    "text": {"formats", "huggingface", "licences", "towers"},
    "tune": {"answers", "evaluation", "formats", "recipes", "reports", "sources", "transfer"},
}
EXTENSION_LINES = {
    "words": 450,
    "formats": 3_750,
    "evaluation": 2_400,
    "compute": 1_975,
    "sources": 1_968,
    "variants": 2_400,
    "serve": 677,
    "ssl": 1_000,
    "towers": 500,
    "text": 650,
    "tune": 550,
}
"""Most lines of an extension; 1,950 of the others."""
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


def test_the_core_imports_no_extension() -> None:
    assert edges() == set()


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
        assert rooms <= MAY_IMPORT[room] | {room, *ONE_PAGE}


@cache
def private_methods() -> dict[str, tuple[set[str], set[str]]]:
    """Class of the core -> its bases, and its methods with one underscore."""
    classes = {}
    for path in CORE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                bases = {ast.unparse(base).split("[")[0] for base in node.bases}
                private = {name for name in methods if re.match("_[a-z]", name)}
                classes[node.name] = bases, private
    return classes


@pytest.mark.parametrize("path", EXTENSION_FILES, ids=shown)
def test_an_extension_replaces_and_imports_nothing_private_of_the_core(path: Path) -> None:
    text, classes = path.read_text(), private_methods()
    assert not re.search(r"^from vit\.(?!extensions).*import .*\b_[a-z]", text, re.M)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            left = {ast.unparse(base).split("[")[0] for base in node.bases}
            while left:
                bases, private = classes.get(left.pop(), (set(), set()))
                assert not methods & private, f"{path}: {node.name}"
                left |= bases


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


def long_functions(path: Path) -> list[str]:
    """Functions of more than 40 lines without their docstring."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            docstring = (first.end_lineno or 0) - first.lineno + 1 if is_text else 0
            if (node.end_lineno or 0) - node.lineno + 1 - docstring > 40:
                names.append(f"{shown(path)} {node.name}")
    return names


def test_functions_have_at_most_40_lines() -> None:
    assert [name for path in FILES for name in long_functions(path)] == []


MODEL = "{patch_size: 8, width: 16, depth: 1, mlp_dim: 32, num_heads: 1}"
RECIPE = f"""\
data: {{image_size: 16, batch_size: 8, loading: {{num_workers: 0}}}}
model: {{architecture: {MODEL}}}
trainer: {{accelerator: cpu, precision: 32-true}}
save_every: 1
"""
FIT = ("fit", "-c", "recipe.yaml", "--steps", "1")
ON_PHOTOS = (*FIT, "--data", "photos", "--run_dir", "other")
CLASSIFY = ("classify", "model", "photos/red/00.jpg")
WORDS: dict[str, list[tuple[str, ...]]] = {
    "answers": [(*CLASSIFY, "--out", "a.csv")],
    "adaptation": [(*ON_PHOTOS, "--model.lora", "8")],
    "evaluation": [("test", "run", "run")],
    "formats": [(*ON_PHOTOS, "--pretrained", "vit_s16.augreg_in21k")],
    "pretraining": [(*ON_PHOTOS, "--task", "mae")],
    "ssl": [(*ON_PHOTOS, "--task", "dino")],
    "recipes": [
        (*ON_PHOTOS, "--model.optimizer", "vit.LAMB"),
        ("fit", "-c", "recipe.yaml", "--data", "photos", "--run_dir", "other", "--budget", "1h"),
    ],
    "scale": [
        (*ON_PHOTOS, "--trainer.strategy", "fsdp2"),
        (*ON_PHOTOS, "--data.batch_size", "auto"),
    ],
    "serving": [
        ("classify", "model.onnx", "photos/red/00.jpg"),
        (*CLASSIFY, "--engine", "openvino"),
        ("test", "run", "--with", "model.onnx"),
    ],
    "sources": [
        (*FIT, "--data", "train-{000..127}.tar"),
        (*FIT, "--data", "s3://bucket/train.tar"),
        (*FIT, "--data", "wide.csv"),
    ],
    "openers": [(*ON_PHOTOS, "--data.channels", "1")],
    "towers": [(*ON_PHOTOS, "--model.architecture.tower", "{}")],
    "text": [(*CLASSIFY, "--names", "cat,dog")],
    "transfer": [(*FIT, "--data", "vtab")],
    "trust": [
        (*CLASSIFY, "--coverage", "0.9"),
        (*CLASSIFY, "--unknown", "0.9"),
        (*CLASSIFY, "--tta"),
    ],
    "variants": [(*ON_PHOTOS, "--model.architecture.variant", "{mlp: geglu}")],
}
"""Extension -> words that it answers, beside its commands."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with photos/, vtab/, recipe.yaml, wide.csv, and a model."""
    (tmp_path / "vtab").mkdir()
    (tmp_path / "vtab" / "train800val200.txt").touch()
    coloured(tmp_path / "photos")
    saved(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    rows = [f"{path.relative_to(tmp_path)},1,0" for path in tmp_path.rglob("*.jpg")]
    (tmp_path / "wide.csv").write_text("\n".join(["path,cat,dog", *rows]))
    return tmp_path


def printed(folder: Path, *words: str) -> str:
    """The last line that Python prints in a folder, with the repository on its path."""
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    variables.pop("VIT_STRICT", None)
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_core_works_without_extensions_and_names_one_that_is_missing(folder: Path) -> None:
    asked = json.dumps({"whole": sorted(EXTENSIONS), "words": WORDS})
    result = json.loads(printed(folder, "-m", "tests.blocked", asked))
    rows = TABLES["commands"]
    assert len(result["commands"]) > 10
    for command, done in result["commands"].items():
        name = rows[command].split(".")[2]
        assert not done["torch"] and refused(done, name), (command, done)
    core = result["core"]
    assert [core[name]["status"] for name in ("fit", "resume", "test")] == [0, 0, 0], core
    assert "resuming run at step 2" in core["resume"]["err"]
    assert "test/acc1" in json.loads(core["test"]["out"])
    assert core["answer"] in ("blue", "grün", "red")
    for name, commands in WORDS.items():
        for words in commands:
            done = result["words"][" ".join(words)]
            assert refused(done, name), (words, done)


def refused(done: dict[str, Any], name: str) -> bool:
    """A command has ended with one line for the user that names the missing extension."""
    last = done["err"].splitlines()[-1]
    one = done["err"].count("vit: ") == 1 and last.startswith("vit: ")
    return done["status"] == 2 and one and f"there is no vit.extensions.{name}; install" in last


IMPORTED = """\
import os, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
from vit.cli.main import main

def stop(optimizer, *_):
    print(*(name for name in sys.modules if name.startswith("vit.extensions.")), flush=True)
    os._exit(0)

register_optimizer_step_post_hook(stop)
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words", [("-c", "quickstart"), ("--data", "photos", "--pretrained", "model")], ids=" ".join
)
def test_a_step_imports_no_extension(words: tuple[str, ...], folder: Path) -> None:
    options = ("--steps", "1", "--trainer.accelerator", "cpu", "--data.loading.num_workers", "0")
    modules = printed(folder, "-c", IMPORTED, "fit", *words, *options).split()
    assert modules == []


def test_a_published_name_imports_the_table_of_names_alone(tmp_path: Path) -> None:
    find = "from vit.weights.names import find; find('dinov2_s14.lvd142m'); import sys; "
    code = find + "print(*(name for name in sys.modules if name.startswith('vit.extensions.')))"
    modules = printed(tmp_path, "-c", code).replace("vit.extensions.", "").split()
    table = {f"formats.{name}" for name in ("published", "download", "hub", "refusals")}
    assert {*modules} == {"formats", *table}


@pytest.mark.parametrize("room", ["models", "inference", "extensions/inspection"])
def test_attention_alone_names_private_operators_of_pytorch(room: str) -> None:
    for path in set((PACKAGE / room).rglob("*.py")) - {PACKAGE / "models" / "attention.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if re.fullmatch(r"torch(\.\w+)+", name):
                assert "._" not in name and ".ops" not in name, f"{path}:{node.lineno}: {name}"


def test_one_module_ends_a_process() -> None:
    names = {path.name: re.findall(r"\bos\._exit\b", path.read_text()) for path in FILES}
    assert {name: uses for name, uses in names.items() if uses} == {"signals.py": ["os._exit"]}


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
