"""Licences of the weights, tokenizers and teachers that a model is made of, which are printed when
they are loaded, and kept in what is trained, saved, converted and exported.

Adds a row of the table `inherited`. Page: docs/weights.md.
"""
