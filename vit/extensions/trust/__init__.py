"""Sets of classes, "none of these", and nodes of a tree of classes in answers.

Adds `vit trust RUN`, and the options --coverage, --unknown and --confidence of `vit classify` and
`Classifier.predict`. Page: docs/trust.md.
"""
