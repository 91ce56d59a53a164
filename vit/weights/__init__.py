"""Weights in and out: our own format and the published ones."""
