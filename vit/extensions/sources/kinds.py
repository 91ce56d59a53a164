"""Kinds of roots beside class folders and plain lists, and who reads them.

What reads a root is imported once it is taken.
"""

import os
from typing import TYPE_CHECKING, Any

from vit.data.roots import Source
from vit.errors import UserError

if TYPE_CHECKING:  # torch
    from vit.data.settings import Reading
    from vit.data.sources import Splits

CSV, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
"""Ends of names, in lower case."""


class Shards(Source):
    """Tar shards, files of Parquet that hold pictures, and addresses, which have one of both."""

    def takes(self, root: object) -> bool:
        if not isinstance(root, str):
            return False
        from vit.extensions.sources.addresses import check_address, find_shards, is_address, is_tar

        if is_address(root):
            check_address(root)
            return True
        shards = next(iter(find_shards(root).values()), [])
        if not shards or is_tar(shards) or not os.path.exists(os.path.expanduser(root)):
            return bool(shards)
        from vit.extensions.sources.parquet import has_pictures

        return has_pictures(shards[0])

    def splits(self, root: str, reading: "Reading") -> "Splits":
        from vit.extensions.sources.addresses import find_shards, is_tar

        shards = find_shards(root)
        if shards and not is_tar(next(iter(shards.values()))):
            from vit.extensions.sources.own import OwnImages
            from vit.extensions.sources.parquet import parquet_splits

            return OwnImages(parquet_splits(root, shards, reading)).splits(reading)
        reading.refuse_columns(root)
        if not shards:
            raise UserError(f"data.root={root} has neither .tar nor .parquet files")
        from vit.data.labelling import make_splits
        from vit.extensions.sources.shard_splits import shard_parts

        return make_splits(root, shard_parts(root, reading, shards), reading, named=any(shards))


class Lists(Source):
    """Lists in a file of Parquet, or with other columns than path, label and split."""

    def takes(self, root: object) -> bool:
        if not isinstance(root, str) or not root.lower().endswith((*PARQUET, *CSV)):
            return False
        if not os.path.isfile(os.path.expanduser(root)):
            return False
        from vit.extensions.sources.lists import is_wide

        return root.lower().endswith(PARQUET) or is_wide(root)

    def splits(self, root: str, reading: "Reading") -> "Splits":
        from vit.extensions.sources.lists import listing_of

        return listing_of(root, reading).read()


class Objects(Source):
    """Images of a Python program."""

    def takes(self, root: object) -> bool:
        if not isinstance(root, tuple):
            return False
        from vit.extensions.sources.own import OwnImages

        OwnImages(*root)  # which says what cannot be read
        return True

    def splits(self, root: Any, reading: "Reading") -> "Splits":
        from vit.extensions.sources.own import OwnImages

        return OwnImages(*root).splits(reading)
