"""The tables of docs/coming_from.md, from the words of other packages that `vit` understands.

python -m benchmarks.parity.words [--check]
"""

from collections.abc import Iterable

from benchmarks.lib.pages import ROOT, filled, generate, table
from vit.extensions.words.command_lines import Word, words
from vit.extensions.words.python_names import Name, names

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


def name_cells(row: Name) -> tuple[str, str, str]:
    """Theirs, ours and a remark."""
    form = "{0}.{1}" if row.is_attribute else "{0}({1}=...)"
    owner = row.owner.removesuffix("()").removesuffix(".__init__")
    theirs = ", ".join(f"`{form.format(owner, name)}`" for name in row.names.split("|"))
    ours = f"`{row.ours}`" if row.ours and "`" not in row.ours else row.ours
    return (
        theirs,
        ours,
        "; ".join(["works as typed"] * bool(row.same) + [row.note] * bool(row.note)),
    )


def page() -> str:
    """The page with its tables."""
    tables = {
        name: table(
            (head, "here", ""), map(cells, _first(row for row in words() if row.package == name))
        )
        for name, head in HEADS.items()
    }
    in_python = table(("there", "here", ""), map(name_cells, names()))
    return filled(PAGE, **tables, names=in_python)


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, page()))
