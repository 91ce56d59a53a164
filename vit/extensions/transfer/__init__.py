"""Fine-tuning on several data sets, VTAB, and self-training. Pages: docs/transfer.md,
docs/self_training.md.
"""
