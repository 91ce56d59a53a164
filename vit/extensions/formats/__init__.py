"""Weights of timm, Hugging Face, Google and torchvision, in and out; published names, the
hub, and rotary positions. Pages: docs/weights.md, docs/families.md.
"""
