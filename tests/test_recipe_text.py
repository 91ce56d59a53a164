"""YAML: what is refused, with its line, and what is read as PyYAML reads it; runs in headers."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonargparse
import pytest
import yaml

from vit.errors import UserError
from vit.recipes import find_recipe, list_recipes, load_yaml, read_options
from vit.runs.directory import run_name

REFUSED = [
    ("a: 1\nb: 2\na: 3", "f, line 3: not valid YAML: 'a' is given twice; keep one"),
    ("a: {b: 1, c: {d: 1},\n b: 3}", "f, line 2: not valid YAML: 'b' is given twice"),
    ("- {a: [1, 2], a: 3}", "f, line 1: not valid YAML: 'a' is given twice"),
    ("&k a: 1\n*k : 2", "'a' is given twice"),
    ("a: !!python/object/apply:os.system [x]", "not valid YAML: could not determine"),
    ("a: " + "9" * 5000, "f: not valid YAML: "),
    ("a: [1", "f, line 1: not valid YAML"),
]


@pytest.mark.parametrize(("text", "part"), REFUSED)
def test_it_is_refused_with_its_line(text: str, part: str) -> None:
    with pytest.raises(UserError) as refusal:
        load_yaml(text, "f")
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: 1}\nc: {<<: *x, b: 3}",
        "a: &x [1, 2]\nb: [*x, *x]",
        "a: {b: 1}\nc: {b: 1}\nd: [b, b, b]",
        "{a: {a: {a: a}}}",
        "[1, null, true, 1.5, '1']",
        "",
        "x",
    ],
)
def test_what_is_no_trap_is_read_as_pyyaml_reads_it(text: str) -> None:
    assert load_yaml(text, "f") == yaml.safe_load(text)


def test_every_recipe_is_read_as_pyyaml_reads_it() -> None:
    for path in list_recipes().values():
        assert read_options(path) == yaml.safe_load(path.read_text())


def test_a_file_that_holds_no_options_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4")
    with pytest.raises(UserError, match=r"latin\.yaml cannot be read as YAML"):
        read_options(tmp_path / "latin.yaml")
    texts = {"": "no options", "- a": "no options", "model: [1]": r"model=\[1\] is not a mapping"}
    for text, reason in texts.items():
        (tmp_path / "wrong.yaml").write_text(text)
        with pytest.raises(UserError, match=rf"wrong\.yaml.* {reason}"):
            read_options(tmp_path / "wrong.yaml")


NAMES = "0 1.5 1.50 1e-3 .5 -1 0x1F 1_000 12:30 2024-01-01 null ~ no yes on True".split()
NAMES += ["a", "é", "it's", "<", "1.5.2"]


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_text_as_it_is_typed(name: str) -> None:
    for text in (f"{{{name}: 3}}", f"a: &x {{{name}: 3}}\nb: {{<<: *x}}", f"- ö: 0\n- {name}: 3\n"):
        value = load_yaml(text, "f")
        inner = value[1] if isinstance(value, list) else value.get("b", value)
        assert inner == {name: 3}


@pytest.mark.parametrize("text", ["1e-3", "1.5e3", "-2E+05", ".5", "7", "1.", "2024-01-01", "e3"])
def test_numbers_and_dates_are_those_of_the_parser_of_options(text: str) -> None:
    assert repr(load_yaml(text, "f")) == repr(jsonargparse.get_loader("yaml")(text))


@pytest.mark.parametrize("name", list_recipes())
def test_a_header_names_runs_that_commands_make(name: str) -> None:
    """runs/NAME is where `vit fit -c RECIPE`, with or without images of the user's, trains."""

    def made(recipe: str, root: str | None) -> str:
        options: Any = SimpleNamespace(recipe=recipe, recipes=[read_options(find_recipe(recipe))])
        options.config = SimpleNamespace(data=SimpleNamespace(root=root, dataset=None))
        return run_name(options)

    roots = (None, "imagenet21k", "my_photos", "FOLDER_OF_CLASSES")
    runs = {made(recipe, root) for recipe in list_recipes() for root in roots}
    header = re.findall(r"^#.*", find_recipe(name).read_text(encoding="utf-8"), re.MULTILINE)
    assert {*re.findall(r"\bruns/([\w.-]+)", "\n".join(header))} <= runs
