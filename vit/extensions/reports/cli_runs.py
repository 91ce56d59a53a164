"""`vit runs`: the runs below a folder."""

import json
from pathlib import Path

from vit.cli.arguments import OneLineParser
from vit.console import show
from vit.errors import UserError
from vit.extensions.reports.run_list import list_runs


def run(args: list[str]) -> int:
    """Prints directory, score, date and state of every run."""
    parser = OneLineParser(prog="vit runs", description="Lists runs, the last changed one first.")
    parser.add_argument(
        "folder", nargs="?", default="runs", help="folder to search (default: runs)"
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(args)
    folder = Path(options.folder).expanduser()
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; `vit fit` writes its runs to runs/")
    entries = list_runs(folder)
    if options.json:
        print(json.dumps(entries, indent=2))
        return 0
    width = max([len(entry["run"]) for entry in entries] or [0])
    for entry in entries:
        date = entry["date"][:16].replace("T", " ")
        show(f"{entry['run']:{width}}  {entry['score']:18}  {date}  {entry['state']}")
    return 0
