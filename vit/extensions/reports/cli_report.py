"""`vit report`: what finishers make of a run."""

from pathlib import Path

from vit.cli.arguments import OneLineParser
from vit.console import show

DESCRIPTION = """\
Rebuilds the report of a finished run: report.html, its pictures, and the additions of installed
packages. The run's own `vit fit` command rebuilds only what failed or was interrupted."""


def run(args: list[str]) -> int:
    """Calls the finishers; exit status 1 where one has failed."""
    parser = OneLineParser(prog="vit report", description=DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="a finished run")
    options = parser.parse_args(args)
    folder = Path(options.run).expanduser()

    from vit.extensions.reports.finished import finished_run  # heavy: imports lightning
    from vit.runs.finishers import finish_rest
    from vit.runs.records import check_run, read_summary

    check_run(folder)
    with finished_run(folder):
        finish_rest(folder, again=True)
    page = folder / "report.html"
    if page.is_file():
        show(f"report         {page.resolve().as_uri()}")
    states = read_summary(folder).get("finishers") or {}
    return int(any(state != "done" for state in states.values()))
