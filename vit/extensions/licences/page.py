"""The licence that the page of a repository states, in the header of its README.md."""

import re
from pathlib import Path
from typing import Any

from vit.errors import printable, shorten
from vit.models.fields import JsonObject, is_list, is_object
from vit.weights.native import without_local_paths

Row = dict[str, str]
"""A licence: "part" of a model, its "source", "licence", and "link" if its terms have a page."""
WEIGHTS, TOKENIZER = "weights", "tokenizer"
"""Parts."""
UNSAID = "not stated by its files; see where it is published"
CARD = "README.md"
_MOST = 2**16
"""Characters of a page in which its header is looked for."""


def of_page(folder: Path, part: str) -> list[Row]:
    """One row, by the header of the page, its licence or UNSAID; none without a page."""
    if not (folder / CARD).is_file():
        return []
    with (folder / CARD).open(encoding="utf-8-sig", errors="replace") as page:
        values = _header(page.read(_MOST))
    name, licence, link = (_texts(values.get(f"license{end}")) for end in ("_name", "", "_link"))
    words = " and ".join(name or licence) or ("other" if link else UNSAID)
    return [as_row(part, source_of(folder), words, "".join(link[:1]))]


def as_row(part: str, source: str, licence: str, link: str = "") -> Row:
    """The row of a part, as it is saved."""
    row = {"part": part, "source": source, "licence": licence} | ({"link": link} if link else {})
    saved: Any = without_local_paths(row)
    return saved


def source_of(folder: Path) -> str:
    """The address of a repository in the hub's cache; the name of another folder."""
    folder = folder.absolute()
    kind, *names = folder.parent.parent.name.split("--", 2)
    is_hub = kind == "models" and folder.parent.name == "snapshots"
    return f"hf://{'/'.join(names)}" if is_hub else folder.name


def _header(text: str) -> JsonObject:
    """The values above a page, in the YAML between two lines of ---; {} for anything else."""
    import yaml  # slow, and most models have no page

    between = re.match(r"\s*---[ \t]*\n(.*?)\n---", text, re.DOTALL)
    try:
        values: object = yaml.load(between[1] if between else "", Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        return {}
    return values if is_object(values) else {}


def _texts(value: object) -> list[str]:
    """The texts of a value, one or several; of a list the first ones."""
    items = value if is_list(value) else [value]
    texts = [item for item in items[:4] if isinstance(item, str) and item not in ("", "other")]
    return [printable(shorten(text, 100)) for text in texts]
