"""Cross-validation: a run for each fold of train and val, and a final one on all images.

Adds `vit folds`, which `vit fit --folds` calls, and the class path vit.OutOfFold. Page:
docs/folds.md.
"""
