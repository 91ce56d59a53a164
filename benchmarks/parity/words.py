"""The tables of docs/coming_from.md, from the words of other packages that `vit` understands.

python -m benchmarks.parity.words [--check]
"""

from collections.abc import Iterable

from benchmarks.lib.pages import ROOT, filled, generate, table
from vit.extensions.words.command_lines import Word, words

PAGE = ROOT / "docs" / "coming_from.md"
HEADS = {
    "timm": "train.py",
    "ultralytics": "ultralytics",
    "AutoTrain": "AutoTrain",
    "MMPretrain": "MMPretrain",
    "transformers": "run_image_classification.py",
    "Lightning": "Trainer",
    "others": "there",
}
"""Package -> head of the first column of its table."""


def cells(row: Word) -> tuple[str, str, str]:
    """Theirs, ours and a remark."""
    ours = row.ours.replace("^", "").replace("{}", row.example)
    ours = ours.replace("@", row.word.split("|")[0])
    ours = f"vit {ours}" if row.commands == "vit" and ours else ours
    notes = ["works as typed"] if row.same else []
    return row.theirs, f"`{ours}`" if ours else "", "; ".join(notes + [row.note] * bool(row.note))


def _first(rows: Iterable[Word]) -> Iterable[Word]:
    """The first row of each word, which may have others in other commands."""
    chosen: dict[str, Word] = {}
    for row in rows:
        chosen.setdefault(row.theirs, row)
    return chosen.values()


def page() -> str:
    """The page with its tables."""
    tables = {
        name: table(
            (head, "here", ""), map(cells, _first(row for row in words() if row.package == name))
        )
        for name, head in HEADS.items()
    }
    return filled(PAGE, **tables)


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, page()))
