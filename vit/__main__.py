"""`python -m vit` is the `vit` command."""

from vit.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
