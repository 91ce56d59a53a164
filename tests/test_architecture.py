"""docs/architecture.md: its files exist, and its table of imports is the tested rule."""

import re
from pathlib import Path

from tests.test_rules import MAY_IMPORT

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_on_the_page_is_in_the_tree() -> None:
    named = set(re.findall(r"`((?:vit|docs|configs|tests|benchmarks)/[^`\s]*|[^`\s]+\.py)`", PAGE))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_table_of_imports_is_the_rule() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\w, -]+) \|$", PAGE.split("## Who may import whom")[1], re.M)
    assert rows.pop(0) == ("room", "may import")
    table = {room: set(cell.replace("-", "").split(", ")) - {""} for room, cell in rows}
    assert table.pop("cli") == {"every room"}
    assert MAY_IMPORT["cli"] == set(table)
    assert table == {room: others for room, others in MAY_IMPORT.items() if room != "cli"}
