"""Fixtures of tests/cli: the command and small image folders."""

from tests.command import photos, vit

__all__ = ["photos", "vit"]
