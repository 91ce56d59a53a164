"""A check of the installation on this machine, from device to a resumed run.

Adds `vit doctor`. Page: docs/runs.md.
"""
