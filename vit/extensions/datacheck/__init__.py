"""Bad files, copies and leaks between splits, and labels in doubt of a data set.

Adds `vit data check`; `vit data pack`, `index` and `vtab` prepare data. Page: docs/data_check.md.
"""
