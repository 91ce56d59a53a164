"""Images from tar shards, Parquet files, addresses, lists with a column per class, and objects of
Python; files that are not RGB.

Adds these places to --data, --data.channels and vit.ImageData.of.
Page: docs/data.md.
"""
