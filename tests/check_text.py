"""Finds trailing blanks, tabs and missing last newlines. Usage: check_text.py FILE..."""

import sys
from pathlib import Path


def faults(path: Path) -> list[str]:
    """What is wrong with a file, one line each."""
    text = path.read_text(encoding="utf-8")
    found = []
    if text and not text.endswith("\n"):
        found.append(f"{path}: no newline at the end")
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            found.append(f"{path}:{number}: trailing blanks")
        if "\t" in line:
            found.append(f"{path}:{number}: a tab")
    return found


if __name__ == "__main__":
    lines = [fault for name in sys.argv[1:] for fault in faults(Path(name))]
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
