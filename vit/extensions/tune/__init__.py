"""A search of options within a time: `vit tune`, and `vit.tune` in Python. Page: docs/tune.md."""
