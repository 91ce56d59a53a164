"""The command and the pictures of tests/command.py."""

from tests.command import photos, vit

__all__ = ["photos", "vit"]
