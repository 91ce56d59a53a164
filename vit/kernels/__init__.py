"""Faster ways to compute the numbers of `vit.models` on CPUs, chosen by measurement.

`accelerate(model)` attaches them, `plain(model)` takes them off; a model without them computes with
PyTorch's own operations. Nothing private to PyTorch is touched at import.
"""
