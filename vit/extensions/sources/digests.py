"""Digests of the images of a set, wherever they are stored."""

import os
from hashlib import sha256

import numpy as np

from vit.data.sources import ImageSet, PathList


def images_digest(images: ImageSet, *, times: bool = True) -> str:
    """A digest of path, size and, with `times`, time of change of each file in order; of shards of
    names and contents; or of pixels."""
    digest = sha256()
    if (of_shards := images.contents_digest()) is not None:
        return of_shards
    if not isinstance(images.items, PathList):
        for image in images.items:
            pixels = np.frombuffer(image, "u1") if isinstance(image, bytes) else np.asarray(image)
            digest.update(f"{pixels.shape} {pixels.dtype}\0".encode())
            digest.update(np.ascontiguousarray(pixels).data)
        return digest.hexdigest()
    for path in images.items:
        status = os.stat(path)
        time = status.st_mtime_ns if times else ""
        digest.update(os.fsencode(path) + f"\0{status.st_size} {time}\n".encode())
    return digest.hexdigest()
