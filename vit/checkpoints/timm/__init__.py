"""timm's ViT, DeiT, DeiT-III, DINOv2, DINOv3, hybrids and BiT, read and written."""

from vit.checkpoints.timm.reading import matches, recognise
from vit.checkpoints.timm.writing import write

__all__ = ["matches", "recognise", "write"]
