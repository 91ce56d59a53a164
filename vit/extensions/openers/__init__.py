"""Images that are not RGB, from arrays and TIFF, and photos of phones: HEIC, AVIF, JPEG XL.

Adds --data.channels and the suffixes of these files.
Page: docs/data.md.
"""
