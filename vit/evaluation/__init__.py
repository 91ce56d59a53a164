"""Evaluation of frozen features, and of models on ImageNet's other test sets."""
