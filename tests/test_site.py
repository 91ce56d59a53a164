"""The site of docs/: each page is on it, and reads there as on a host of repositories."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

import vit
from tests.test_rules import FILES, PACKAGE
from vit.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
SHELVES = {name: pages for shelf in SITE["nav"][1:] for name, pages in shelf.items()}


def test_the_site_has_the_shelves_of_the_index() -> None:
    parts = re.split(r"^## (.+)$", PAGES["index.md"], flags=re.MULTILINE)[1:]
    texts = zip(parts[::2], parts[1::2], strict=True)
    shelves = {name: re.findall(r"\]\((\w+\.md)\)", text) for name, text in texts}
    assert [*SHELVES] == [*shelves] and len(SHELVES["Start"]) <= 4
    earlier: list[str] = []
    for name, pages in shelves.items():
        assert SHELVES[name] == [page for page in dict.fromkeys(pages) if page not in earlier]
        earlier += pages
    assert {*earlier, "index.md"} == PAGES.keys()


def test_pages_link_to_what_is_on_the_site() -> None:
    for name, page in PAGES.items():
        targets = re.findall(r"\]\((?!https?:)([^)#]+)", page)
        assert [target for target in targets if target.startswith(("/", ".."))] == [], name


def test_the_path_through_start_leads_from_page_to_page() -> None:
    for page, after in zip(SHELVES["Start"][:2], SHELVES["Start"][1:], strict=False):
        assert after in PAGES[page].splitlines()[-1]


def test_the_reference_has_the_public_names() -> None:
    assert sorted(re.findall(r"^::: vit\.(\w+)$", PAGES["api.md"], re.MULTILINE)) == vit.__all__


def tags(html: str) -> Counter[str]:
    """Counts of headings, list items, cells and other elements; text and code left out."""
    html = re.sub(r'<a class="headerlink".*?</a>', "", html)
    html = re.sub(
        r'<div class="highlight">.*?</div>|<pre>.*?</pre>', "<pre>", html, flags=re.DOTALL
    )
    return Counter(re.findall(r"<(h\d|ul|ol|li|tr|th|td|pre|img|a|strong|em|p)\b", html))


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"api.md"}))
def test_a_page_has_the_parts_that_commonmark_reads(name: str) -> None:
    markdown = pytest.importorskip("markdown")
    pytest.importorskip("pymdownx")
    options = {
        k: v
        for each in SITE["markdown_extensions"]
        if isinstance(each, dict)
        for k, v in each.items()
    }
    extensions = [
        next(iter(each)) if isinstance(each, dict) else each for each in SITE["markdown_extensions"]
    ]
    html = markdown.markdown(PAGES[name], extensions=extensions, extension_configs=options)
    assert tags(html) == tags(MarkdownIt("commonmark").enable("table").render(PAGES[name]))


def test_the_page_of_reports_has_their_sections() -> None:
    report = (PACKAGE / "extensions/reports/report.html").read_text(encoding="utf-8")
    titles = re.findall(r"<h2>([\w ]+)", report.replace('this {{ "', "this "))
    headings = re.findall(r"^## (.+)$", PAGES["reading_your_report.md"], re.MULTILINE)
    assert headings[0] == "The number on top"
    assert titles == headings[1:]


MESSAGES = re.findall(r"^- `(.+)`$", PAGES["errors.md"], re.MULTILINE)


def pattern(message: str) -> str:
    """A regular expression of a message on the page, where ... stands for any text."""
    return ".*".join(map(re.escape, message.split("...")))


@cache
def texts() -> list[str]:
    """Texts in the package, with a 0 character for each value that is filled in."""

    def text(node: ast.AST) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        return "".join(map(text, node.values)) if isinstance(node, ast.JoinedStr) else "\0"

    nodes = (node for path in FILES for node in ast.walk(ast.parse(path.read_text())))
    return [text(node) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)]


@pytest.mark.parametrize("message", MESSAGES)
def test_an_error_of_the_page_is_in_the_code(message: str) -> None:
    assert any(re.search(pattern(message), text, re.DOTALL) for text in texts())


def test_the_page_has_the_errors_that_people_meet() -> None:
    assert len(MESSAGES) >= 40 and len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize(
    "command",
    [
        "fot",
        "fit --data photos --no-such-option 3",
        "fit -c nowhere --data photos",
        "fit -c probe --data nowhere",
        "fit -c probe",
        "fit -c probe --data photos",
        "fit -c probe --data none",
        "fit -c finetune --data flat --pretrained nowhere.pth",
        "test photos",
        "classify photos none/a.jpg",
        "classify nowhere.onnx photos/a.jpg",
    ],
)
def test_what_a_mistake_prints_is_on_the_page(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("photos/cat/a.jpg", "flat/a.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    [line] = [each for each in capsys.readouterr().err.splitlines() if each.startswith("vit: ")]
    assert any(re.search(pattern(message), line) for message in MESSAGES), line
