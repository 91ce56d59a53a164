"""`vit models`: architectures and published weights by name."""

import json

from vit.cli.arguments import OneLineParser
from vit.errors import UserError
from vit.models.zoo import ZOO, list_models
from vit.weights.names import entries

EPILOG = """\
examples:
  vit models 'vit_b*'
  vit models --weights --licence apache-2.0
  vit models --weights 'dinov2_*' --json"""


def run(args: list[str]) -> int:
    """Prints name, parameters, sizes and source of every match."""
    parser = OneLineParser(
        prog="vit models", description="Lists architectures or published weights.", epilog=EPILOG
    )
    parser.add_argument("pattern", nargs="?", default="*", help="names to list, such as 'vit_b*'")
    parser.add_argument("--weights", action="store_true", help="list published weights by name")
    parser.add_argument(
        "--licence", metavar="L", help="only weights under this licence, such as apache-2.0"
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(args)
    if options.weights:
        for names in entries():
            names.print_list(options.pattern, options.licence, as_json=options.json)
        return 0
    if options.licence is not None:
        raise UserError("--licence needs --weights")
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
