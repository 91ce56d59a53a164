"""The licence that a repository of the hub states."""

from pathlib import Path

import yaml

from vit.errors import shorten
from vit.models.fields import is_object

CARD = "README.md"
UNSAID = "not stated by its files; see where it is published"


def licence_of(folder: Path) -> str:
    """Name and link in the header of the model's page, or UNSAID."""
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    start, header, *_ = [*text.split("---", 2), "", ""]
    try:
        values = {} if start.strip() else yaml.safe_load(header)
    except yaml.YAMLError:
        return UNSAID
    if not is_object(values):
        return UNSAID
    names = [values.get(f"license{part}") for part in ("_name", "", "_link")]
    words = [str(name) for name in names if name and name != "other"]
    return shorten(", ".join(words), 200) or UNSAID
