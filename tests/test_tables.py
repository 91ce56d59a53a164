"""The rows of what is added to the core, ours and those of installed packages."""

import csv
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import vit as package
from tests.command import Vit, saved, vit
from vit.errors import UserError
from vit.tables import HELP, TABLES, installed, resolve

__all__ = ["vit"]

ROWS = [(table, name) for table, names in TABLES.items() for name in names]
Install = Callable[..., Path]


@pytest.mark.parametrize(("table", "name"), ROWS, ids=[".".join(row) for row in ROWS])
def test_every_row_names_something(table: str, name: str) -> None:
    row = TABLES[table][name]
    if table == "short_names":  # an option, an argument of a class that may fill it, and limits
        target = row.split()[0].partition(":")[2]
        kind, _, argument = target.removeprefix("vit.").partition(".")
        assert argument in inspect.signature(getattr(package, kind)).parameters
    else:
        assert callable(resolve(row))


@pytest.mark.parametrize("table", HELP)
def test_every_row_has_its_line_in_the_help(table: str) -> None:
    assert [*HELP[table]] == [*TABLES[table]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package whose module has a command, and whose dist-info has a row."""
    before = set(sys.modules)

    def write(row: str, name: str = "greeting", summary: str = "greets", code: str = "") -> Path:
        module, about = tmp_path / f"{name}.py", tmp_path / f"{name}-1.0.dist-info"
        module.write_text(code or "def run(args):\n    print('hello', *args)\n    return 3\n")
        about.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
        lines += [f"Summary: {summary}"] if summary else []
        (about / "METADATA").write_text("\n".join([*lines, ""]))
        (about / "entry_points.txt").write_text(f"[vit.extensions]\n{row}\n")
        monkeypatch.syspath_prepend(tmp_path)
        installed.cache_clear()
        return module

    yield write
    installed.cache_clear()
    for name in {"greeting", "one", "two"} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.mark.parametrize("summary", ["greets whom you name", ""])
def test_an_installed_package_adds_a_command(summary: str, vit: Vit, install: Install) -> None:
    install("commands.greet = greeting:run", summary=summary)
    assert vit("greet", "you") == (3, "hello you\n", "")
    assert f"  greet      {summary}".rstrip() in vit("--help").out.splitlines()
    done = vit("gret")
    assert done.status == 2 and "did you mean 'greet'" in done.err


@pytest.mark.parametrize(("name", "packages"), [("fit", ["one"]), ("greet", ["one", "two"])])
def test_a_name_twice_is_refused(
    name: str, packages: list[str], vit: Vit, install: Install
) -> None:
    for other in packages:
        install(f"commands.{name} = {other}:run", other)
    done = vit("recipes")
    assert done.status == 2 and len(done.err.splitlines()) == 1
    assert done.err.startswith(f"vit: {packages[-1]}:run adds {name!r} to ")


def test_a_row_of_no_table_is_refused(vit: Vit, install: Install) -> None:
    install("source.npz = greeting:run")
    done = vit("recipes")
    assert done.status == 2 and done.err.startswith("vit: greeting:run of a package: 'source.npz'")
    assert len(done.err.splitlines()) == 1 and "'sources'" in done.err


BLOCKED = """\
import sys
sys.modules["vit.extensions.trust.cli_trust"] = None
from vit.cli.main import main
status = main(["trust"])
print(*sorted({"torch", "lightning", "numpy"} & set(sys.modules)))
sys.exit(status)
"""


def test_a_missing_module_is_one_line_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "\n")
    module = "vit.extensions.trust.cli_trust"
    assert done.stderr == (
        f"vit: {module}:run is not installed: there is no {module}; install its package again\n"
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("greeting:greet", "greeting:greet: greeting has no greet; install its package again"),
        ("greeting:run", "greeting:run is no vit.data.roots.Source with all of its methods"),
        ("greeting:Lists", "greeting:Lists is no vit.data.roots.Source with all of its methods"),
    ],
    ids=["no object", "no class", "no takes"],
)
def test_a_row_of_something_else_is_one_line(
    row: str, problem: str, vit: Vit, install: Install
) -> None:
    code = "from vit.data.roots import Source\n\nclass Lists(Source):\n    pass\n\nrun = print\n"
    install(f"sources.lists = {row}", code=code)
    assert vit("data", "check", "my-lists") == (2, "", f"vit: {problem}\n")


def test_a_library_that_a_row_needs_is_not_taken_for_its_module(vit: Vit, install: Install) -> None:
    install("commands.greet = greeting:run", code="import there_is_none\n")
    done = vit("greet")
    assert done.status == 1
    assert "ModuleNotFoundError: No module named 'there_is_none'" in done.err


BRIGHTNESS = """\
from vit.errors import Range

class Brightness:
    allowed = Range("in [0, 1]", lambda value: 0 <= value <= 1)
    fields = ("bright",)
    compares_features = False
    measured = None

    def __init__(self, classifier, number):
        self.number = number

    def __call__(self, logits, features, probabilities):
        return [(self.number + len(row),) for row in logits]

    @staticmethod
    def line(row):
        return f"brightness {row['bright']}"
"""


def test_an_installed_package_adds_a_field_to_predictions(
    vit: Vit, install: Install, tmp_path: Path
) -> None:
    install("answers.brightness = greeting:Brightness", summary="its brightness", code=BRIGHTNESS)
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    args = ("classify", saved(tmp_path / "model"), "a.png", "--brightness", "0.5")
    assert "its brightness" in vit("classify", "--help").out
    assert "\n  brightness 3.5\n" in vit(*args).out
    [row] = json.loads(vit(*args, "--json").out)
    assert row["bright"] == 3.5
    assert vit(*args, "--out", "a.csv").status == 0
    [row] = csv.DictReader(Path("a.csv").read_text().splitlines())
    assert row["bright"] == "3.5"
    assert vit(*args[:-1], "2") == (2, "", "vit: brightness=2.0 must be in [0, 1]\n")


def test_predictions_have_the_fields_that_are_asked_for(tmp_path: Path) -> None:
    classifier = package.load(saved(tmp_path))
    picture = Image.new("RGB", (16, 16))
    with pytest.raises(UserError, match="'coverag'; did you mean 'coverage'"):
        classifier.predict(picture, coverag=0.9)
    [prediction] = classifier.predict(picture, coverage=None)
    assert prediction.set is prediction.labels is None
    with pytest.raises(AttributeError, match="'sett'"):
        _ = prediction.sett


def test_a_model_answers_without_what_is_added(
    vit: Vit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    args = ("classify", saved(tmp_path / "model"), "a.png")
    for module in ("trust.trust_answers", "serving.engines"):
        monkeypatch.setitem(sys.modules, f"vit.extensions.{module}", None)
    status, shown, error = vit(*args)
    assert (status, error) == (0, "") and " red\n" in shown
    for words in (("--coverage", "0.9"), ("--engine", "openvino")):
        status, _, error = vit(*args, *words)
        assert status == 2 and len(error.splitlines()) == 1 and "is not installed" in error


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("vit.extensions.recipes.randaugment", ["--data.augment.policy=vit.RandAugment"]),
        (
            "vit.extensions.transfer.pseudo",
            ["--data.pseudo=vit.Pseudo", "--data.pseudo.answers=a", "--data.pseudo.root=b"],
        ),
    ],
)
def test_a_class_path_whose_module_is_missing_is_one_line(
    module: str, words: list[str], vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    fit = ["fit", "-c", "quickstart", "--print_config", "--data.pseudo=null"]
    fit += ["--data.augment.policy=null"]
    assert vit(*fit).status == 0
    status, _, error = vit(*fit, *words)
    assert status == 2 and len(error.splitlines()) == 1 and f"there is no {module}" in error


def test_an_unknown_engine_lists_those_that_are_there(tmp_path: Path) -> None:
    message = r"engine='openvin' .*\['torch', 'openvino'\]; did you mean 'openvino'"
    with pytest.raises(UserError, match=message):
        package.load(saved(tmp_path), engine="openvin")
