"""Exported models with proof, other runtimes, and answers for folders of images. Pages:
docs/export.md, docs/trust.md.
"""
