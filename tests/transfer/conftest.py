"""The command, and the small folders of pictures, of tests/cli."""

from tests.cli.conftest import photos, vit

__all__ = ["photos", "vit"]
