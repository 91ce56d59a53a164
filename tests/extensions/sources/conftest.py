"""Folders of pictures, and a cache of each test's own."""

from tests.data.conftest import make_tree, own_cache

__all__ = ["make_tree", "own_cache"]
