"""Folders of pictures."""

from tests.data.conftest import make_tree

__all__ = ["make_tree"]
