"""The files for people who work on the project: what they name exists, and nothing is left out."""

import ast
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_each_rule_is_explained() -> None:
    texts = (ROOT / "tests" / name for name in ("test_rules.py", "test_language.py"))
    nodes = [node for path in texts for node in ast.parse(path.read_text("utf-8")).body]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    rules = {name for name in names if name.startswith("test_")}
    assert set(re.findall(r"`(test_\w+)`", PAGE)) == rules


def test_what_the_pages_name_exists() -> None:
    paths = re.findall(r"`([\w.]+/[\w./]*)`", PAGE)
    paths += [
        path
        for line in re.findall(r"^pytest (.+)$", PAGE, re.M)
        for path in line.split("#")[0].split()
    ]
    paths += re.findall(r"\]\((?!https?:)([^)#]+)", PAGE + SECURITY)
    missing = [path for path in paths if not (ROOT / path.replace("NAME", "index")).exists()]
    assert len(paths) > 30 and missing == []


def test_the_extras_that_it_installs_are_there() -> None:
    extras = set(re.findall(r"pip install -e '\.\[(\w+)\]'", PAGE))
    assert extras == {"dev", "peers"} and extras <= PROJECT["optional-dependencies"].keys()


def test_a_citation_has_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.keys() >= {"cff-version", "message", "title", "authors", "preferred-citation"}
    of_project = [PROJECT[key] for key in ("name", "version", "license")]
    assert [citation[key] for key in ("title", "version", "license")] == of_project
    paper = citation["preferred-citation"]
    assert "2010.11929" in paper["url"] and len(paper["authors"]) == 12


def test_the_workflow_runs_what_a_change_must_pass() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert {"run": ".ci/run"} in workflow["jobs"]["checks"]["steps"]
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("zensical build --strict") for line in lines)
