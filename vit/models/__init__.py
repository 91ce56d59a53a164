"""Architectures on plain torch: Vision Transformers and the ResNets they are compared with."""
