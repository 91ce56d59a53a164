"""Parts of published recipes: three versions of RandAugment, CutMix, LAMB and SGDW, an average of
the weights, a run within a time, several crops of an image (of the task dino), and a change of
images or a loss of the user's own.

Adds `vit recipes`, `vit fit --budget`, the class paths vit.RandAugment, vit.LAMB, vit.SGDW, vit.EMA
and vit.Budget, data.augment.extra, model.mixing.cutmix and model.loss.function.
Page: docs/data.md.
"""
