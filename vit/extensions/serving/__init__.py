"""Models exported with a proof, other runtimes, and answers for whole folders of pictures.

Adds `vit export`, `vit classify --out` and `--engine`, `vit test --with`, and exported files in the
place of a run. Pages: docs/export.md, docs/trust.md.
"""
