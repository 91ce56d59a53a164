"""`vit models`: architectures and published weights by name."""

import argparse
import json
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from vit.cli.arguments import OneLineParser
from vit.errors import UserError
from vit.models.zoo import ZOO, list_models

EPILOG = """\
examples:
  vit models 'vit_b*'
  vit models --weights --licence apache-2.0
  vit models --weights 'dinov2_*' --json"""


def run(args: list[str]) -> int:
    """Prints name, parameters, sizes and source of every match."""
    parser = OneLineParser(
        prog="vit models", description="Lists architectures, or published weights.", epilog=EPILOG
    )
    parser.add_argument("pattern", nargs="?", default="*", help="such as 'vit_b*'")
    parser.add_argument("--weights", action="store_true", help="list published weights by name")
    parser.add_argument(
        "--licence", metavar="L", help="only weights under this licence, such as apache-2.0"
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(args)
    if options.weights:
        return _weights(options)
    models = {name: ZOO[name] for name in list_models(options.pattern)}
    if options.json:
        rows = [
            {"name": name, "params": m.num_params, "source": m.source, **m.config.to_dict()}
            for name, m in models.items()
        ]
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'name':19} {'million parameters':>18}  source (1000 classes)")
    for name, model in models.items():
        print(f"{name:19} {model.num_params / 1e6:18.1f}  {model.source}")
    return 0


def _weights(options: argparse.Namespace) -> int:
    from vit.checkpoints.published import pages, table

    licences = {row.licence for row in table().values()}
    wanted = options.licence and options.licence.lower()
    if wanted is not None and wanted not in licences:
        raise UserError(
            f"--licence {options.licence} has no weights; choose {' | '.join(sorted(licences))}"
        )
    rows = [
        row
        for name, row in table().items()
        if fnmatchcase(name, options.pattern) and wanted in (None, row.licence)
    ]
    if options.json:
        links = pages()

        def linked(value: Any) -> Any:
            return links.get(value, value) if isinstance(value, str) else value

        texts = [{key: linked(value) for key, value in asdict(row).items()} for row in rows]
        print(json.dumps(texts, indent=2))
        return 0
    print(
        f"{'name':45} {'size':>8} {'outputs':>7} {'pixels':>6} {'top-1, %':>8}  "
        f"{'licence':22} {'source'}"
    )
    for row in rows:
        top = "-" if row.accuracy is None else f"{row.accuracy:.1f}"
        print(
            f"{row.name:45} {row.amount:>8} {row.outputs:7} {row.image_size:6} {top:>8}  "
            f"{row.licence + ' (gated)' * row.gated:22} {row.source}"
        )
    print(
        "\ngated: the terms of the licence must be accepted first; a download shows where."
        "\n~: from the number of parameters. top-1: on ImageNet; for models without outputs, of a "
        "linear\nclassifier on their features. --json names the source of each value."
    )
    return 0
