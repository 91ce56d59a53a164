"""Architectures in plain torch: Vision Transformers, and the ResNets of their paper."""
