"""`vit models`: the table of named models."""

import json

from vit.cli.messages import OneLineParser
from vit.models.zoo import ZOO, list_models


def run(args: list[str]) -> int:
    """Prints name, parameters, sizes and source of every model that matches."""
    parser = OneLineParser(prog="vit models", description="Lists the models that have a name.")
    parser.add_argument("pattern", nargs="?", default="*", help="such as 'vit_b*'")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(args)
    rows = [
        {
            "name": name,
            "params": ZOO[name].num_params,
            "source": ZOO[name].source,
            **ZOO[name].config.to_dict(),
        }
        for name in list_models(options.pattern)
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'name':14} {'million parameters':>18}  source (1000 classes)")
    for row in rows:
        print(f"{row['name']:14} {row['params'] / 1e6:18.1f}  {row['source']}")
    return 0
