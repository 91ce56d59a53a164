"""Parquet files that hold the pictures themselves, as Hugging Face stores data sets.

data/train-00000-of-00008.parquet   columns image (a struct of bytes and path, or bytes) and label

Less than a row group cannot be read; the last few that were used stay in memory.
"""

import json
import os
from typing import Any

import numpy as np

from vit.console import note
from vit.data.decode import ImageError, NamedBytes
from vit.data.settings import Reading
from vit.data.sources import SPLIT_WORDS, SplitName
from vit.errors import UserError, some_of
from vit.extensions.sources.addresses import (
    cache_limit,
    drop_old_copies,
    local_copy,
    reaching,
    words_by_split,
)
from vit.extensions.sources.lists import open_parquet

MAX_KEPT = 256 * 2**20
"""Bytes of row groups that stay in the memory of a process."""


class ParquetImages:
    """A Dataset of (bytes of an image file, label); `classes` and `targets` are as torchvision has.

    Args:
        files: Paths or addresses.
        column: That of the labels: numbers of classes, text, or lists of those; None takes none.
        split: A column whose words become `words`, if there is one.

    Raises UserError if a file cannot be read, or lacks the column, or pictures.
    """

    lists_labels = True
    """Those of its items are its `targets`."""

    def __init__(self, files: list[str], column: str | None, split: str) -> None:
        with open_parquet(files[0]), reaching(files[0]) as (system, _):
            from pyarrow import dataset

            places = [system._strip_protocol(file) for file in files]
            data: Any = dataset.dataset(places, format="parquet", filesystem=system)
            self._leaf = picture_leaf(data.schema)
            self.columns = names = data.schema.names
            listed = f"but {some_of(names, 20)}"
            if self._leaf is None:
                raise UserError(f"{files[0]} has no column of pictures, {listed}")
            if column is not None and column not in names:
                raise UserError(f"{files[0]} lacks {column!r}, {listed} (--data.columns.label)")
            self.targets = [0] * data.count_rows()
            if column is not None:
                self.targets = data.to_table(columns=[column])[column].to_pylist()
            at = [name for name in names if name.lower() == split.lower()]
            words = [each.unique().to_pylist() for each in data.to_table(columns=at).columns]
            self.words = {str(word) for each in words for word in each}
            fragments = list(data.get_fragments())
        self.classes = _class_names(data.schema, column)
        for file, each in zip(files, fragments, strict=True):
            if picture_leaf(each.physical_schema) != self._leaf:
                raise UserError(f"{file} has no pictures in {self._leaf}, which {files[0]} has")
            if _class_names(each.physical_schema, column) != self.classes:
                raise UserError(f"{file} has other classes than {files[0]}, or in another order")
        self._files, counts = files, [each.count_rows() for each in fragments]
        self._starts = np.cumsum([0, *counts])
        pairs = zip(files, fragments, strict=True)
        groups = [(file, group) for file, each in pairs for group in each.row_groups]
        self._groups = [(file, group.id) for file, group in groups]
        self._ends = np.cumsum([group.num_rows for _, group in groups])
        sizes = [group.total_byte_size for _, group in groups]
        self._most = max(1, MAX_KEPT // max(sizes))
        self._copies = sum(sizes) <= cache_limit()
        drop_old_copies(files)
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[NamedBytes, Any]:
        """Raises ImageError if the file cannot be read, or the row has no picture."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        column = self._kept.pop(number, None)
        column = self._kept[number] = self._read(number) if column is None else column
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        content = column[index - int(self._ends[number])].as_py()  # counted from the end
        if content is None:
            raise ImageError(f"{self.row_name(index)} has no bytes in {self._leaf}; leave it out")
        return NamedBytes(content, self.row_name(index)), self.targets[index]

    def row_name(self, index: int) -> str:
        """FILE/row."""
        file = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"{os.path.basename(self._files[file])}/{index - self._starts[file]}"

    def in_blocks(self) -> tuple[np.ndarray, int]:
        """The row group of each picture, int64 `n`, and how many stay in memory."""
        return np.searchsorted(self._ends, np.arange(len(self)), side="right"), self._most

    def _read(self, number: int) -> Any:
        file, group = self._groups[number]
        place = str(local_copy(file)) if self._copies else file
        try:
            with open_parquet(place) as opened:
                table = opened.read_row_group(group, [self._leaf], use_threads=False)
        except UserError as error:
            raise ImageError(str(error)) from error
        return table.flatten().column(0)


def picture_leaf(schema: Any) -> str | None:
    """The first column of bytes, or field `bytes` of a column."""
    for field in schema:
        for leaf in field.flatten():
            usual = leaf.name in (field.name, f"{field.name}.bytes")
            if usual and str(leaf.type) in ("binary", "large_binary"):
                return leaf.name
    return None


def _class_names(schema: Any, column: str | None) -> list[str]:
    """The classes of a column by number, as Hugging Face's library writes them down; else []."""
    try:
        described = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
        feature = described.get("info", {}).get("features", {}).get(column, {})
        feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        names = feature.get("names", [])
    except (ValueError, AttributeError, LookupError):  # written by something else
        return []
    of_text = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if of_text else []


def has_pictures(file: str) -> bool:
    """True if a file holds pictures, and not paths. UserError if it cannot be read."""
    with open_parquet(file) as opened:
        return picture_leaf(opened.schema_arrow) is not None


def parquet_splits(
    root: str, shards: dict[str, list[str]], reading: Reading
) -> dict[SplitName, ParquetImages]:
    """The pictures in files of Parquet that have been found, by their split; none of a split
    without labels (-1). UserError for columns that only a list may have."""
    reading.refuse_columns(root)
    columns = reading.columns
    splits: dict[SplitName, ParquetImages] = {}
    for name, word in words_by_split(root, shards).items():
        column = columns.label if reading.has_classes else None
        images = ParquetImages(shards[word], column, columns.split)
        if {SPLIT_WORDS.get(word.lower()) for word in images.words} - {name}:
            text = f"{root}: {name} has {some_of(sorted(images.words))} in column {columns.split!r}"
            raise UserError(f"{text}; write a file for each split, or --data.columns.split none")
        if reading.tree and "parent" in map(str.lower, images.columns):
            raise UserError(f"{root}: pictures with a column 'parent'; write animal/cat as label")
        if set(map(str, images.targets)) == {"-1"}:
            note(f"{root}: {name} left out: its labels are hidden (-1)")
        else:
            splits[name] = images
    if not splits:
        raise UserError(f"{root}: all labels are hidden (-1)")
    return splits
