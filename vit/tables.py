"""What is added to the core, as strings: each row is "module:object", imported on use.

An installed package adds rows of its own by entry points of the group `vit.extensions`, whose names
are TABLE.NAME, without a change to this file:

    [project.entry-points."vit.extensions"]
    "sources.npz" = "vit_npz:NpzFolder"

Readable without torch.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vit.errors import UserError

GROUP = "vit.extensions"

TABLES: dict[str, dict[str, str]] = {
    # Word after `vit` -> function of the other words, which returns the exit status.
    "commands": {},
    # Word of --task -> vit.training.network_training.NetworkTraining.
    "tasks": {
        "classification": "vit.training.classifier:ImageClassifier",
        "masked_patches": "vit.training.masked_patches:MaskedPatchPrediction",
        "mae": "vit.training.masked_autoencoder:MaskedAutoencoder",
        "autoregressive": "vit.training.autoregressive:Autoregressive",
    },
    # Asked in this order, and after them the folder of class folders.
    "sources": {
        "vtab": "vit.data.kinds:VtabTask",
        "shards": "vit.data.kinds:Shards",
        "lists": "vit.data.kinds:Lists",
        "own": "vit.data.kinds:Objects",
    },
    # Asked in this order for images that are not RGB; all others are Pillow's.
    "openers": {"raster": "vit.data.raster:Raster"},
    # Asked in this order: ours first, since our names of tensors are also timm's ->
    # vit.checkpoints.formats.Format.
    "formats": {
        "native": "vit.checkpoints.native:Native",
        "timm": "vit.checkpoints.timm:Timm",
        "torchvision": "vit.checkpoints.torchvision:Torchvision",
        "huggingface": "vit.checkpoints.huggingface:HuggingFace",
        "google": "vit.checkpoints.google:Google",
    },
    # Checkpoint that is a folder -> vit.checkpoints.archives.FolderReader.
    "folders": {"sharded": "vit.checkpoints.sharded:read_folder"},
    "builders": {},
    # Words that mean weights, and the classes of their heads -> vit.checkpoints.names.Names.
    "names": {
        "published": "vit.checkpoints.published:PublishedNames",
        "addresses": "vit.checkpoints.hub:Addresses",
        "imagenet": "vit.checkpoints.class_names:ImageNet",
    },
    # Suffix of a model that another runtime computes.
    "engines": {},
    # Field that a prediction gains.
    "answers": {},
    # trainer.strategy=WORD -> Lightning's Strategy, made without arguments;
    # data.batch_size=WORD -> vit.runs.batch.BatchByWord.
    "values": {
        "trainer.strategy=fsdp2": "vit.training.sharding:ShardedStrategy",
        "data.batch_size=auto": "vit.runs.batch_trial:batch_by_trial",
    },
}
"""Table -> name -> row."""


def rows(table: str) -> dict[str, str]:
    """Name -> "module:object", those of installed packages last. UserError for a name twice."""
    named = dict(TABLES[table])
    for name, entry in installed(table).items():
        if name in named:
            raise UserError(
                f"{entry.value} of an installed package adds {name!r} to the {table} of vit, which "
                "have it already; uninstall one of the two"
            )
        named[name] = entry.value
    return named


def objects(table: str) -> dict[str, Any]:
    """Name -> what its row names, imported."""
    return {name: resolve(row) for name, row in rows(table).items()}


@cache
def installed(table: str) -> dict[str, EntryPoint]:
    """Name -> the entry point that an installed package has for the table."""
    entries = (entry for entry in entry_points(group=GROUP) if entry.name.startswith(f"{table}."))
    return {entry.name.removeprefix(f"{table}."): entry for entry in entries}


def resolve(row: str) -> Any:
    """The object that a row names. UserError if its module is not there."""
    module, _, name = row.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a library that the module needs
        raise UserError(
            f"{row} is not installed: there is no {error.name}; install its package again"
        ) from error
