"""Weights of timm, Google and torchvision, read and written; files of other programs; weights by
published names and by addresses; rotary positions (DINOv3).

Adds `vit convert`, `vit download`, `vit models --weights`, vit.push_to_hub, and names and addresses
wherever a command takes weights. Pages: docs/weights.md, docs/families.md.
"""
