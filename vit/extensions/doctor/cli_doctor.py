"""`vit doctor`: whether everything works on this machine, as text to paste into a report."""

import json

from vit.cli.arguments import OneLineParser
from vit.hardware import versions

DESCRIPTION = """\
Checks this installation and machine: code that Python runs at its start, the device, the workers,
a fit of 20 steps on generated pictures, its resumption after an interruption, and a saved model.
Takes less than a minute, needs no network and leaves no files. Paste the output into a bug
report."""


def run(args: list[str]) -> int:
    """Prints versions, and a verdict on each check. Exit status 1 if one failed."""
    parser = OneLineParser(prog="vit doctor", description=DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print one object")
    text = "also two processes, and a file of each export that is installed (minutes)"
    parser.add_argument("--all", action="store_true", help=text)
    options = parser.parse_args(args)
    as_json = options.json
    if not as_json:  # before the import of a library can fail
        texts = (f"{name} {number}" for name, number in versions().items())
        print(f"{'versions':10} {', '.join(texts)}", flush=True)

    from vit.extensions.doctor.doctor import examine  # heavy: imports lightning

    checks = []
    for check in examine(more=options.all):
        checks.append(check)
        if not as_json:
            state = "ok" if check["ok"] else "FAILED"
            print(f"{check['check']:10} {state}: {check['text']}", flush=True)
    if as_json:
        report = {"versions": versions(), "checks": checks}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    return int(not all(check["ok"] for check in checks))
