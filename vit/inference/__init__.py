"""Inference with a trained model, its class names and preprocessing."""
