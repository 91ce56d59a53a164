"""Rules for the structure of the package."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

import vit

PACKAGE = Path(vit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Room -> (rooms that it may import, in addition to itself and the one-page modules; most lines).
ROOMS: dict[str, tuple[set[str], int]] = {
    "models": ({"variants"}, 1_990),  # by zoo alone, and only when one is named
    "variants": ({"models"}, 1_900),
    "data": (set(), 6_980),
    "reports": (set(), 1_680),
    "checkpoints": ({"models"}, 5_280),
    # `checkpoints` reads the configuration of a weights file; the catalog has the sizes of
    # data sets.
    "compute": ({"data", "models", "checkpoints"}, 1_420),
    "inference": ({"data", "models", "checkpoints"}, 1_450),
    # Its figures are drawn with the colours, fonts and pages of `reports`.
    "inspection": ({"data", "models", "checkpoints", "inference", "reports"}, 1_150),
    "evaluation": ({"data", "models", "checkpoints", "inference"}, 1_560),
    "exports": ({"data", "models", "checkpoints", "inference"}, 730),
    "training": ({"models", "checkpoints"}, 4_430),
}
ROOMS["runs"] = (set(ROOMS), 4_010)
ROOMS["cli"] = (set(ROOMS), 2_550)
MAY_IMPORT = {room: others for room, (others, _) in ROOMS.items()}
LINES = {room: lines for room, (_, lines) in ROOMS.items()} | {"one-page modules": 1_860}
"""A budget is met by removing mechanisms, never by denser lines. It may be raised in the commit
that needs it, with the reason in the message."""
# One-page modules in vit/, which every room may import.
ONE_PAGE = {
    "cache",
    "console",
    "calibration",  # shared by training's metric, evaluation and reports
    "confidence",  # shared by inference, runs and evaluation
    "errors",
    "fine_tuning",  # shared by training and the cost of a recipe
    "hardware",
    "intervals",  # shared by runs, exports and reports
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
# What tells the story of a network that is trained or fine-tuned on a folder of photos, resumed,
# scored and used. The rest adds to it.
CORE = {
    "": "cache console calibration confidence errors fine_tuning hardware label_tree logistic "
    "preprocessing ranking recipes seeds shapes signals writing yaml_reader __init__ __main__ "
    "tables",
    "models": "attention backbone config embedding encoder fields initialization pooling resnet "
    "units vision_transformer zoo",
    "checkpoints": "adapt archives building contents exporting files formats identity layout lora "
    "native pretrained report writing",
    "data": "batches beginnings catalog cut dataset decode find folder groups loaders manifest "
    "memory module options photo sampler scan sources trained_on transforms",
    "training": "budget classifier counted_data csv_log draws lightning_internals losses metrics "
    "mixing network_training saving schedules",
    "training/callbacks": "by_size finite invariants linear_probe progress stopping",
    "training/optimizers": "groups muon",
    "runs": "directory evaluate files finish first_batch fit following mistakes notebook options "
    "processes scoring short_names trainer",
    "inference": "classifier transforms lineage",
    "cli": "arguments main fit evaluate classify recipes runs models",
}
"""Room -> files without which it would not be told."""
CORE_LINES, EDGES = 16_383, 94
"""Lines of the core, and its imports of the rest; both only fall."""
HEAVY = {
    "models": {"lightning", "torchvision", "PIL", "torchmetrics", "numpy"},
    "variants": {"lightning", "torchvision", "PIL", "torchmetrics", "numpy"},
    "reports": {"lightning", "torchvision"},
    "inference": {"lightning", "torchvision", "torchmetrics"},
    "inspection": {"lightning", "torchvision", "torchmetrics"},
    "compute": {"lightning"},
}


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


def core_files() -> set[Path]:
    """The files of CORE, with __init__.py of its rooms."""
    names = {room: {*stems.split(), "__init__"} for room, stems in CORE.items()}
    return {PACKAGE / room / f"{stem}.py" for room, stems in names.items() for stem in stems}


def edges() -> set[tuple[Path, Path]]:
    """(file of the core, file of the rest that it imports), wherever in the file."""
    core, homes = core_files(), {}
    for path in FILES:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        homes[name.removesuffix(".__init__")] = path
    pairs = set()
    for path in core:
        for name in imports(path):
            while name and name not in homes:
                name = name.rpartition(".")[0]
            if name and homes[name] not in core:
                pairs.add((path, homes[name]))
    return pairs


def test_the_core_and_its_imports_of_the_rest_only_fall() -> None:
    assert all(path.is_file() for path in core_files())
    assert len(edges()) <= EDGES
    assert sum(len(path.read_text().splitlines()) for path in core_files()) <= CORE_LINES


def test_every_folder_and_module_of_the_package_is_in_the_tables() -> None:
    places = [path.relative_to(PACKAGE) for path in FILES]
    assert {path.parts[0] for path in places if len(path.parts) > 1} == set(MAY_IMPORT)
    modules = {path.stem for path in places if len(path.parts) == 1}
    assert modules == ONE_PAGE | {"__init__", "__main__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    names = imports(path)
    rooms = {name.split(".")[1] for name in names if name.startswith("vit.")}
    if room in ONE_PAGE:
        assert rooms <= ONE_PAGE
    elif room in MAY_IMPORT:
        assert rooms <= MAY_IMPORT[room] | {room, *ONE_PAGE}
    packages = {name.split(".")[0] for name in names}
    assert not packages & HEAVY.get(room, set())
    assert "timm" not in packages


def test_the_zoo_alone_imports_variants_and_only_when_one_is_named() -> None:
    importing = [path for path in FILES if any("vit.variants" in name for name in imports(path))]
    outside = [path for path in importing if path.parent.name != "variants"]
    assert outside == [PACKAGE / "models" / "zoo.py"]
    top = [ast.unparse(node) for node in ast.parse(outside[0].read_text()).body]
    assert not any("vit.variants" in text for text in top if text.startswith(("from", "import")))


def test_no_command_imports_another() -> None:
    from vit.cli.main import COMMANDS

    modules = {target.partition(":")[0] for target, _ in COMMANDS.values()}
    assert len(modules) > 10
    for module in modules:
        names = imports(PACKAGE.parent / f"{module.replace('.', '/')}.py")
        assert not {".".join(name.split(".")[:3]) for name in names} & modules, module


@pytest.mark.parametrize("room", LINES)
def test_a_room_keeps_to_its_budget_of_lines(room: str) -> None:
    files = (PACKAGE / room).rglob("*.py") if room in ROOMS else PACKAGE.glob("*.py")
    assert 100 < sum(len(path.read_text().splitlines()) for path in files) <= LINES[room]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "base", "factory", "engine"}


@pytest.mark.parametrize("room", ["models", "inference", "inspection"])
def test_attention_alone_names_private_operators_of_pytorch(room: str) -> None:
    for path in set((PACKAGE / room).rglob("*.py")) - {PACKAGE / "models" / "attention.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if re.fullmatch(r"torch(\.\w+)+", name):
                assert "._" not in name and ".ops" not in name, f"{path}:{node.lineno}: {name}"


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
