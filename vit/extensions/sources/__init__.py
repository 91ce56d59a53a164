"""Images from tar shards, Parquet, addresses and Datasets of Python; files that are not
RGB. Page: docs/data.md.
"""
