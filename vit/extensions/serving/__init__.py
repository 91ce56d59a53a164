"""Models exported with a proof, other runtimes, answers for whole folders of pictures, and the
preprocessing of a model as a callable.

Adds `vit export`, `vit classify --out` and `--engine`, `vit test --with`, `vit.transforms`, and
exported files in the place of a run. Pages: docs/export.md, docs/trust.md.
"""
