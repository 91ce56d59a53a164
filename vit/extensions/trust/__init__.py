"""Sets of classes, "none of these", nodes of a tree of classes, and mirror images in answers.

Adds `vit trust RUN`, and the options --coverage, --unknown and --confidence of `vit classify` and
`Classifier.predict`, and its --tta. Page: docs/trust.md.
"""
