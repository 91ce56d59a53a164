"""Runs without the pictures at their end."""

from tests.pictureless import no_pictures

__all__ = ["no_pictures"]
