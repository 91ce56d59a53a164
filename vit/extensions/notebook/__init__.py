"""`vit fit` as a function, for notebooks and scripts.

Adds vit.fit, vit.from_recipe and vit.Run. Page: docs/your_own_loop.md.
"""
