"""Answers for whole folders of pictures, in files that grow by whole rows.

Adds `vit classify --out`. Page: docs/weights.md.
"""
