"""Words of other packages, and completion of ours in a shell.

A word of timm, ultralytics, transformers and others with the same meaning works as typed, and any
other one is answered by the line to type; words.csv has them. `vit completion` prints the script of
a shell. Pages: docs/coming_from.md, docs/runs.md.
"""
