"""Finds trailing blanks, tabs and missing last newlines. Usage: check_text.py FILE..."""

import sys
from pathlib import Path


def faults(path: Path) -> list[str]:
    """What is wrong with a file, one line each."""
    text = path.read_text(encoding="utf-8")
    messages = []
    if text and not text.endswith("\n"):
        messages.append(f"{path}: no newline at the end")
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            messages.append(f"{path}:{number}: trailing blanks")
        if "\t" in line:
            messages.append(f"{path}:{number}: a tab")
    return messages


if __name__ == "__main__":
    lines = [fault for name in sys.argv[1:] for fault in faults(Path(name))]
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
