"""The format of Hugging Face's transformers: ViT, DeiT, DINOv2, DINOv3, BiT, and the image towers
of CLIP and SigLIP, read and written.

Adds `--to huggingface`, and models of transformers wherever a command takes weights.
Page: docs/weights.md.
"""
