"""Real weights beside the checkout."""

from tests.extensions.formats.conftest import shared_weights

__all__ = ["shared_weights"]
