"""Answers for whole folders of pictures, in files that grow by whole rows or in others' engines.

Adds `vit classify --out` and `vit.BatchClassifier`. Page: docs/weights.md.
"""
