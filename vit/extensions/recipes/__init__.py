"""Published augmentations (RandAugment's three), optimizers (LAMB, SGDW) and EMA, and an
augmentation of the user's. Page: docs/data.md.
"""
