"""Accuracy of frozen features (few-shot, k-NN, probes), ImageNet's other sets, corruptions, and
two runs on the same images.

Adds `vit fewshot`, `vit knn`, `vit probe`, `vit imagenet`, `vit robustness` and `vit test RUN
OTHER`. Pages: docs/evaluation.md, docs/robustness.md.
"""
