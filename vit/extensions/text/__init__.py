"""Classes by their names: text towers of CLIP, MetaCLIP 2, SigLIP and SigLIP 2, of transformers and
open_clip, whose rows are a head of the image tower.

Adds --names and --templates of `vit classify` and `vit convert`, the same options of vit.load, and
the models whose configuration has `cosine`. Page: docs/names.md.
"""
