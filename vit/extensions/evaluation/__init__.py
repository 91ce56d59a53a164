"""Frozen features, few-shot, k-NN and logistic probes, ImageNet's other sets,
corruptions, paired tests. Pages: docs/evaluation.md, docs/robustness.md.
"""
