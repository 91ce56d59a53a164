"""Operations, memory, time and price of models and of whole trainings.

Adds `vit models`, which lists, `vit compare`, which counts, and `vit bench`, which measures. Page:
docs/compute.md.
"""
