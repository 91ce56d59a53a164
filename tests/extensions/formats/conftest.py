"""Weights beside the checkout, and a server of files."""

from tests.weights.conftest import server, shared_weights

__all__ = ["server", "shared_weights"]
