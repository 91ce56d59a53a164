"""Scores of images with several labels, and a threshold for each class. Page: docs/data.md."""
