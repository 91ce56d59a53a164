"""Images from tar shards, Parquet files, addresses, lists with a column per class, and objects of
Python.

Adds these places to --data and vit.ImageData.of.
Page: docs/data.md.
"""
