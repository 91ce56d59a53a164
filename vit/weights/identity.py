"""Identity of weights: by it a run or a plan knows them from others at the same path."""

import hashlib
import json
from pathlib import Path

from vit.weights.archives import DIGESTS, digest_of
from vit.weights.names import locate
from vit.weights.native import Native
from vit.weights.weight_file import (
    FORMAT,
    find_weights,
    is_safetensors,
    open_weights,
    read_json,
)

IN_FORCE = ("multilabel", "thresholds", "temperature")


def identity(path: str | Path) -> str:
    """A digest of the weights that a path, a name or an address means, 16 hexadecimal digits.

    Of our own model it is of the digest in its header, and of the classes, preprocessing,
    thresholds and temperature in force; of any other file of its bytes and of the descriptions
    beside it. UserError if there are no weights, such as for a run without a finished model.
    """
    file = find_weights(Path(locate(path)[0]).expanduser())
    if file.is_dir():  # a sharded checkpoint
        return digest_of(file / DIGESTS)[:16]
    opened = open_weights(file) if is_safetensors(file) else None
    if opened is not None and FORMAT in opened.header:
        info = Native().recognise(opened)
        digest = json.loads(opened.header[FORMAT])["sha256"]
        facts = [digest, info.classes, info.preprocess, *map(info.extra.get, IN_FORCE)]
    else:
        names = ("config.json", "preprocessor_config.json", "processor_config.json")
        facts = [digest_of(file), *(read_json(file.parent / name) for name in names)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
