"""The command in this process, and small folders of pictures."""

from tests.command import photos, vit

__all__ = ["photos", "vit"]
