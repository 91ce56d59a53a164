"""Fine-tuning on several data sets, VTAB-1k, and self-training.

Adds `vit transfer` and `vit selftrain`, folders of VTAB-1k's lists as a source of images, and
`vit.Pseudo` (`--data.pseudo`). Pages: docs/transfer.md, docs/vtab.md, docs/self_training.md.
"""
