"""Runs without pictures; weights to start from, and runs that are only recorded."""

from tests.pictureless import no_pictures

__all__ = ["no_pictures"]
