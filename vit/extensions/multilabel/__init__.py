"""Scores of images with several labels, and a threshold for each class.

Adds the metrics map, f1 and exact to trainings with several labels. Page: docs/data.md.
"""
