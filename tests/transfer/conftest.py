"""Fixtures of tests/cli: the command and small image folders."""

from tests.cli.conftest import photos, vit

__all__ = ["photos", "vit"]
