"""Image towers that are no plain ViT: Perception Encoder (core, spatial and lang) and EVA-02.

Adds the class of the models whose configuration has `tower`, and the format of open_clip.
Page: docs/weights.md.
"""
