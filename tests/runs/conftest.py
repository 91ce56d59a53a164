"""The command in this process, small folders of pictures, and predictions."""

from tests.command import photos, vit
from tests.predictions import answer, few

__all__ = ["answer", "few", "photos", "vit"]
