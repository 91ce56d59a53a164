"""Published augmentations (RandAugment's three, CutMix), optimizers (LAMB, SGDW) and EMA, and an
augmentation or a loss of the user's. Page: docs/data.md.
"""
