"""One model from several runs of the same images, with the mean of their weights.

Adds `vit average`. Page: docs/weights.md.
"""
