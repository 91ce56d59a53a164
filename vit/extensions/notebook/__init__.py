"""Commands as functions, for notebooks and scripts.

Adds vit.fit, vit.from_recipe, vit.Run, vit.knn, vit.fewshot, vit.probe, vit.check and vit.inspect.
Page: docs/your_own_loop.md.
"""
