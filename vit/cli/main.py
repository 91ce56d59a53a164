"""The `vit` command: finds the subcommand, imports it, and turns mistakes into one line.

Nothing heavy is imported here, so that `vit --help` answers at once.
"""

import os
import sys
from importlib import import_module
from io import TextIOWrapper

from vit.errors import UserError, did_you_mean
from vit.hardware import keep_memory

# name -> (module, what it does). Each module has run(args) -> exit status.
COMMANDS = {
    "fit": ("vit.cli.fit", "train or fine-tune a model by a recipe"),
    "validate": ("vit.cli.evaluate", "score a run on its validation images"),
    "test": ("vit.cli.evaluate", "score a run on its test images"),
    "predict": ("vit.cli.evaluate", "write a run's answers for a whole split to a CSV file"),
    "transfer": ("vit.cli.transfer", "fine-tune to several data sets as the paper does; a table"),
    "fewshot": ("vit.cli.fewshot", "accuracy of frozen features with a few images a class"),
    "knn": ("vit.cli.knn", "accuracy of nearest neighbours among frozen features"),
    "probe": ("vit.cli.probe", "accuracy of logistic regression on frozen features"),
    "imagenet": ("vit.cli.imagenet", "score a model on ImageNet's val, ReaL, V2, A and R"),
    "classify": ("vit.cli.classify", "name what is on pictures, with a trained model"),
    "recipes": ("vit.cli.recipes", "list the recipes that `-c` finds by name"),
    "models": ("vit.cli.models", "list the models that have a name"),
    "compare": ("vit.cli.compare", "what models cost: operations, memory, speed, whole trainings"),
    "bench": ("vit.cli.bench", "images a second on this machine, and how near to its limit"),
    "convert": ("vit.cli.convert", "translate weights between formats, or compare two files"),
}

EXAMPLES = """\
examples:
  vit fit -c quickstart                            train on handwritten digits, under two minutes
  vit fit -c finetune --data.root my_photos/       your pictures: one folder a class
  vit classify runs/my_photos photo.jpg            top five classes with probabilities
  vit test runs/my_photos                          score it on the images kept aside

`vit COMMAND --help` tells more about one command."""


def usage() -> str:
    """The text of `vit --help`."""
    lines = ["usage: vit COMMAND [ARGUMENTS]", "", "commands:"]
    lines += [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join([*lines, "", EXAMPLES])


def main(argv: list[str] | None = None) -> int:
    """Runs one command. 0: done; 2: a mistake of the user's, told in one line; 1: anything else."""
    args = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal may lack the letters of a file name
        sys.stdout.reconfigure(errors="backslashreplace")
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] == "--version":
        from importlib.metadata import version

        print(f"vit {version('vit')}")
        return 0
    try:
        name = args[0]
        if name not in COMMANDS:
            hint = did_you_mean(name, COMMANDS) or "; `vit --help` lists the commands"
            raise UserError(f"unknown command {name!r}{hint}")
        keep_memory()
        module = import_module(COMMANDS[name][0])
        if COMMANDS[name][0] == "vit.cli.evaluate":
            return module.run(name, args[1:])
        return module.run(args[1:])
    except UserError as error:
        print(f"vit: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.strerror is None:
            raise
        where = "" if error.filename is None else f": {error.filename}"
        print(f"vit: {error.strerror}{where}", file=sys.stderr)  # a full disk, a lost share
        return 1
    except KeyboardInterrupt:
        print("vit: stopped", file=sys.stderr)
        return 1
