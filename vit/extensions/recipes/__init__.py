"""Parts of published recipes: three versions of RandAugment, CutMix, LAMB and SGDW, an average of
the weights, and a change of images or a loss of the user's own.

Adds `vit recipes`, the class paths vit.RandAugment, vit.LAMB, vit.SGDW and vit.EMA,
data.augment.extra, model.mixing.cutmix and model.loss.function. Page: docs/data.md.
"""
