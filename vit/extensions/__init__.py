"""Features that the core does not know: a folder each, and rows of vit/tables.py."""
