"""`vit download`: fetches published weights into the cache or another folder."""

from pathlib import Path

from vit.cli.arguments import OneLineParser
from vit.writing import writable

EPILOG = """\
examples:
  vit download dinov2_s14                      the weights that `vit fit -c finetune` starts from
  vit download vit_s16.augreg_in21k --to usb/  for a machine without network access

A folder filled by --to has the layout of the cache: on the other machine, copy its contents to
~/.cache/vit, or set VIT_CACHE to it. `vit models --weights` lists the names."""


def run(args: list[str]) -> int:
    """Fetches every name and prints the paths."""
    parser = OneLineParser(
        prog="vit download", description="Downloads published weights by name.", epilog=EPILOG
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="such as vit_s16.augreg_in21k")
    parser.add_argument("--to", metavar="DIR", help="the folder to fill (default: the cache)")
    options = parser.parse_args(args)
    from vit.extensions.formats.published import find

    rows = [find(name) for name in options.names]  # before the first download
    folder = None
    if options.to is not None:
        folder = writable(Path(options.to).expanduser(), "--to")
    for row in rows:
        print(row.path(folder))
    return 0
