"""`vit completion`: scripts by which a shell completes commands, and the names that they ask for.

The scripts are written by `python -m tests.extensions.words.scripts`, with shtab.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from vit.cli.arguments import OneLineParser

SHELLS = ("bash", "zsh", "fish")
EPILOG = """\
Type this, or add it to the file that your shell reads when it starts:
  bash, in ~/.bashrc:                   source <(vit completion bash)
  zsh, in ~/.zshrc behind compinit:     eval "$(vit completion zsh)"
  fish, in ~/.config/fish/config.fish:  vit completion fish | source"""


def run(args: list[str]) -> int:
    """Prints the script of a shell, or names, a line each."""
    about = "Prints the script by which a shell completes commands, or the names that it asks for."
    parser = OneLineParser(prog="vit completion", description=about, epilog=EPILOG)
    words = [*SHELLS, *NAMES]
    parser.add_argument("words", metavar="WORD", nargs="+", choices=words, help=", ".join(words))
    for word in parser.parse_args(args).words:
        if word in NAMES:
            print("\n".join(NAMES[word]()))
        else:
            print(script(word).read_text(encoding="utf-8"), end="")
    return 0


def script(shell: str) -> Path:
    """The file of a shell's script."""
    return Path(__file__).with_name(f"vit.{shell}")


def _runs() -> Iterator[str]:
    """Runs in runs/, and in folders there."""
    from vit.runs.records import is_run

    for pattern in ("*/config.yaml", "*/*/config.yaml"):
        folders = (file.parent for file in sorted(Path("runs").glob(pattern)))
        yield from map(str, filter(is_run, folders))


def _models() -> list[str]:
    from vit.models.zoo import list_models

    return list_models()


def _recipes() -> list[str]:
    from vit.recipes import list_recipes

    return [*list_recipes()]


def _weights() -> Iterator[str]:
    from vit.weights.names import entries

    for names in entries():
        for architecture in _models():
            yield from names.of(architecture)


NAMES: dict[str, Callable[[], Iterator[str] | list[str]]] = {
    "runs": _runs,
    "models": _models,
    "weights": _weights,
    "recipes": _recipes,
}
"""Kind -> function of its names, which imports what it needs alone, and never torch."""
