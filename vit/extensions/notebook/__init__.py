"""`vit fit` as a function, for notebooks and scripts. Page: docs/your_own_loop.md."""
