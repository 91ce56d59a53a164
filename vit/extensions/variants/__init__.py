"""Mechanisms that papers propose and no published weights need: positions, mixers, MLPs,
residuals, norms and stacks of layers.

Adds the option `--model.architecture.variant.KIND PART`, and `variant` of `vit.create_model`.
Page: docs/variants.md.
"""
