"""Folders that are cut into splits."""

from pathlib import Path


def with_val(photos: Path, root: Path) -> Path:
    """Of each class eight pictures for train, four for val."""
    for path in sorted(photos.rglob("*.jpg")):
        place = root / ("val" if int(path.stem) >= 8 else "train") / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return root


def with_splits(photos: Path, root: Path) -> Path:
    """Of each class five pictures for val and two for test; one of val has another's label."""
    for path in sorted(photos.rglob("*.jpg")):
        at = int(path.stem)
        part = "train" if at < 5 else "val" if at < 10 else "test"
        name = {"red": "blue", "blue": "grün"}.get(path.parent.name, "red") if at == 9 else ""
        target = root / part / (name or path.parent.name) / f"{path.parent.name}{path.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return root


def several_labels(root: Path) -> Path:
    """A list of the pictures of `root`, two of each class with a second label."""
    rows = ["path,label,split"]
    for path in sorted(root.rglob("*.jpg")):
        label = "red|grün" if path.stem in ("01", "09") else path.parent.name
        rows.append(f"{path},{label},{path.parent.parent.name}")
    Path("several.csv").write_text("\n".join(rows), encoding="utf-8")
    return Path("several.csv")
