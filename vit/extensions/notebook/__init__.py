"""Commands as functions, for notebooks and scripts, and a network as a folder.

Adds vit.fit, vit.from_recipe, vit.Run, vit.save, vit.knn, vit.fewshot, vit.probe, vit.check and
vit.inspect. Page: docs/your_own_loop.md.
"""
