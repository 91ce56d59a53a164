"""The rows of what is added to the core, ours and those of installed packages."""

import csv
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vit
from tests.command import saved
from vit.errors import UserError
from vit.tables import HELP, TABLES, resolve

ROWS = [(table, name) for table, names in TABLES.items() for name in names]
MAIN = "import sys; from vit.cli.main import main; sys.exit(main(sys.argv[1:]))"
BLOCKED = """\
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in "MODULES".split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from vit.cli.main import main
status = main(sys.argv[1:])
print(*sorted({"torch", "lightning", "numpy"} & set(sys.modules)))
sys.exit(status)
"""


@pytest.mark.parametrize(("table", "name"), ROWS, ids=[".".join(row) for row in ROWS])
def test_every_row_names_something(table: str, name: str) -> None:
    row = TABLES[table][name]
    if table == "short_names":  # an option, and an argument of a class that may fill it
        kind, _, argument = row.partition(":")[2].removeprefix("vit.").partition(".")
        assert argument in inspect.signature(getattr(vit, kind)).parameters
    else:
        assert callable(resolve(row))


@pytest.mark.parametrize("table", HELP)
def test_every_row_has_its_line_in_the_help(table: str) -> None:
    assert [*HELP[table]] == [*TABLES[table]]


def run(place: Path, *args: str, code: str = MAIN) -> tuple[int, str, str]:
    """Status, output and errors of `vit`, where `place` is searched for packages first."""
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def install(place: Path, row: str, name: str = "greeting", summary: str = "greets") -> None:
    """Writes a package whose module has a command, and whose dist-info has the row."""
    (place / f"{name}.py").write_text("def run(args):\n    print('hello', *args)\n    return 3\n")
    about = place / f"{name}-1.0.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Summary: {summary}"] if summary else []
    (about / "METADATA").write_text("\n".join([*lines, ""]))
    (about / "entry_points.txt").write_text(f"[vit.extensions]\n{row}\n")


@pytest.mark.parametrize("summary", ["greets whom you name", ""])
def test_an_installed_package_adds_a_command(summary: str, tmp_path: Path) -> None:
    install(tmp_path, "commands.greet = greeting:run", summary=summary)
    assert run(tmp_path, "greet", "you") == (3, "hello you\n", "")
    _, shown, _ = run(tmp_path, "--help")
    assert f"  greet      {summary}".rstrip() in shown.splitlines()
    status, _, error = run(tmp_path, "gret")
    assert status == 2 and "did you mean 'greet'" in error


@pytest.mark.parametrize(("name", "packages"), [("fit", ["one"]), ("greet", ["one", "two"])])
def test_a_name_twice_is_refused(name: str, packages: list[str], tmp_path: Path) -> None:
    for package in packages:
        install(tmp_path, f"commands.{name} = {package}:run", package)
    status, _, error = run(tmp_path, "recipes")
    assert (status, error) == (
        2,
        f"vit: {packages[-1]}:run of an installed package adds {name!r} to the commands of vit, "
        "which have it already; uninstall one of the two\n",
    )


def test_a_row_of_no_table_is_refused(tmp_path: Path) -> None:
    install(tmp_path, "source.npz = greeting:run")
    status, _, error = run(tmp_path, "recipes")
    assert status == 2 and error.startswith("vit: greeting:run of a package: 'source.npz'")
    assert len(error.splitlines()) == 1 and "'sources'" in error


@pytest.mark.parametrize(
    ("command", "module"), [("trust", "vit.extensions.trust.cli_trust"), ("greet", "greeting")]
)
def test_a_missing_module_is_one_line_without_torch(
    command: str, module: str, tmp_path: Path
) -> None:
    install(tmp_path, "commands.greet = greeting:run")
    status, heavy, error = run(tmp_path, command, code=BLOCKED.replace("MODULES", module))
    assert (status, heavy) == (2, "\n")
    assert error == (
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
def test_a_row_of_something_else_is_one_line(row: str, problem: str, tmp_path: Path) -> None:
    install(tmp_path, f"sources.lists = {row}")
    with (tmp_path / "greeting.py").open("a") as file:
        file.write("from vit.data.roots import Source\n\nclass Lists(Source):\n    pass\n")
    status, _, error = run(tmp_path, "data", "check", "my-lists")
    assert (status, error) == (2, f"vit: {problem}\n")


def test_a_library_that_a_row_needs_is_not_taken_for_its_module(tmp_path: Path) -> None:
    install(tmp_path, "commands.greet = greeting:run")
    (tmp_path / "greeting.py").write_text("import there_is_none\n")
    status, _, error = run(tmp_path, "greet")
    assert status == 1 and "ModuleNotFoundError: No module named 'there_is_none'" in error


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


def test_an_installed_package_adds_a_field_to_predictions(tmp_path: Path) -> None:
    install(tmp_path, "answers.brightness = greeting:Brightness", summary="how bright it is")
    (tmp_path / "greeting.py").write_text(BRIGHTNESS)
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    model, picture = str(saved(tmp_path / "model")), str(tmp_path / "a.png")
    assert "how bright it is" in " ".join(run(tmp_path, "classify", "--help")[1].split())
    args = ("classify", model, picture, "--brightness", "0.5")
    assert "\n  brightness 3.5\n" in run(tmp_path, *args)[1]
    [row] = json.loads(run(tmp_path, *args, "--json")[1])
    assert row["bright"] == 3.5
    out = tmp_path / "a.csv"
    assert run(tmp_path, *args, "--out", str(out))[0] == 0
    head, cells = csv.reader(out.read_text().splitlines())
    assert dict(zip(head, cells, strict=True))["bright"] == "3.5"
    status, _, error = run(tmp_path, *args[:-1], "2")
    assert (status, error) == (2, "vit: brightness=2.0 must be in [0, 1]\n")


def test_predictions_have_the_fields_that_are_asked_for(tmp_path: Path) -> None:
    classifier = vit.load(saved(tmp_path))
    picture = Image.new("RGB", (16, 16))
    with pytest.raises(UserError, match="predictions have no 'coverag'; did you mean 'coverage'"):
        classifier.predict(picture, coverag=0.9)
    [prediction] = classifier.predict(picture, coverage=None)
    assert prediction.set is prediction.labels is None
    with pytest.raises(AttributeError, match="'sett'"):
        _ = prediction.sett


def test_a_model_answers_without_what_is_added(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    model, picture = str(saved(tmp_path / "model")), str(tmp_path / "a.png")
    code = BLOCKED.replace(
        "MODULES", "vit.extensions.trust.trust_answers vit.extensions.serving.engines"
    )
    status, shown, error = run(tmp_path, "classify", model, picture, code=code)
    assert (status, error) == (0, "") and " red\n" in shown
    for words in (("--coverage", "0.9"), ("--engine", "openvino")):
        status, _, error = run(tmp_path, "classify", model, picture, *words, code=code)
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
    module: str, words: list[str], tmp_path: Path
) -> None:
    code = BLOCKED.replace("MODULES", module)
    fit = ["fit", "-c", "quickstart", "--print_config", "--data.pseudo=null"]
    fit += ["--data.augment.policy=null"]
    assert run(tmp_path, *fit, code=code)[0] == 0
    status, _, error = run(tmp_path, *fit, *words, code=code)
    assert status == 2 and len(error.splitlines()) == 1 and f"there is no {module}" in error


def test_an_unknown_engine_lists_those_that_are_there(tmp_path: Path) -> None:
    message = r"engine='openvin' is not one of \['torch', 'openvino'\]; did you mean 'openvino'"
    with pytest.raises(UserError, match=message):
        vit.load(saved(tmp_path), engine="openvin")
