"""Exported models with proof, other runtimes, answers for folders of images, and a model's
preprocessing as a callable. Pages:
docs/export.md, docs/trust.md.
"""
