"""`python -m vit` is the `vit` command."""

from vit.cli.main import entry

if __name__ == "__main__":
    entry()
