"""Models exported with a proof, and other runtimes.

Adds `vit export`, `vit classify --engine`, `vit test --with`, and exported files in the place of a
run. Page: docs/export.md.
"""
