"""Tables and pages that are generated from the files in benchmarks/results."""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent


def results_path(name: str) -> Path:
    """A results file by its path from benchmarks/ without .json, as in papers/vtab/results."""
    return BENCHMARKS / f"{name}.json"


def load(name: str) -> Any:
    """The content of a results file, by its path from benchmarks/ without .json."""
    return json.loads(results_path(name).read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, without a line break behind it."""
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def plus_minus(mean: float, std: float | None) -> str:
    """Mean and standard deviation, where there is one."""
    return f"{mean:.1f}" + ("" if std is None else f" ± {std:.1f}")


def over(values: Sequence[float], form: str = ".1f") -> str:
    """Mean of the values and, of several, their standard deviation; - of none."""
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{deviation}"


def spread(middle: float, low: float, high: float) -> str:
    """Median and range."""
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def span(row: Mapping[str, Any]) -> str:
    """A ratio and its range over the rounds."""
    return spread(row["ratio"], row["ratio_min"], row["ratio_max"])


def filled(page: Path, **texts: str) -> str:
    """The page with new texts between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
    content = page.read_text(encoding="utf-8")
    for name, text in texts.items():
        start, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = content.split(start)
        content = f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}"
    return content


def generate(page: Path, content: str, figure: Callable[[], None] | None = None) -> int:
    """Writes the page and draws its figure; with --check, exit status 1 if it is another page."""
    if "--check" in sys.argv:
        return int(page.read_text(encoding="utf-8") != content)
    page.write_text(content, encoding="utf-8")
    if figure is not None:
        figure()
    return 0
