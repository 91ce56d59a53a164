"""Commands as functions, for notebooks and scripts; options are those of the command, as keywords.

`vit.knn("runs/a", "my_photos", k=[5, 10])` is `vit knn runs/a --data my_photos --k 5 10`. Raises
UserError as the command does, also for an unknown option.
"""

import json
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from vit.confidence import carried_over
from vit.console import note
from vit.errors import UserError
from vit.extensions.backbones.image_transform import transforms
from vit.inference.classifier import Classifier
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.tables import resolve, rows
from vit.weights.native import save_native

KINDS = ("multilabel", "tree", "regression", "projection")
"""Facts of the outputs of weights, which a head has for as long as it is not replaced."""
Place = str | Path
Table = dict[str, Any]


def knn(model: Place, data: Place, **options: object) -> Table:
    """Accuracy of weighted nearest neighbours among frozen features, as `vit knn --json` prints it:
    a mapping, in which `rows` is a list of mappings with `k` and `accuracy`, a share.

    Args:
        model: A run, a model directory, a file of weights, a name or an address.
        data: A folder, a CSV or Parquet file, or a data set by name.
        options: Of `vit knn`, such as `k=[10, 20]`.
    """
    return _table("knn", str(model), data=data, **options)


def fewshot(model: Place, data: Place, **options: object) -> Table:
    """Accuracy of frozen features with a few images per class, as `vit fewshot --json` prints it;
    see `knn`. Options such as `shots=[1, 5], seeds=3`."""
    return _table("fewshot", str(model), data=data, **options)


def probe(model: Place, data: Place, **options: object) -> Table:
    """Accuracy of a logistic regression on frozen features, as `vit probe --json` prints it; see
    `knn`. Options such as `num_c=45`."""
    return _table("probe", str(model), data=data, **options)


def check(data: Place, **options: object) -> Table:
    """Bad files, copies, leaks and, with `model`, labels in doubt, as `vit data check --json` has
    them. Options such as `out="data_check"`."""
    return _table("data", "check", str(data), **options)


def inspect(model: Place, *images: Place, **options: object) -> list[Path]:
    """Attention maps, rollout, Grad-CAM and filters of a model for `images`, files or folders.

    Returns the figures and the page that are written to `out`, by default inspection/. Options are
    those of `vit inspect`; that of `--class` is `**{"class": "cat"}`.
    """
    text = _printed("inspect", [str(model), *map(str, images), *_words(options)])
    return list(map(Path, text.splitlines()))


def save(
    model: "Model | Classifier", folder: Place, classes: list[str] | None = None, **preprocess: Any
) -> Path:
    """Writes a network as a model directory, and returns it: `vit.create_model(pretrained=folder)`
    reads it, and with `classes`, the names of its outputs, `vit.load(folder)` does. A classifier in
    PyTorch is written with its classes, and what makes its probabilities and labels; a network with
    what its outputs are, such as several labels, or a projection.

    The preprocessing is that of `vit.transforms(model, **preprocess)`, which raises UserError for
    weights that do not record it. A model in the folder is replaced, other files stay.
    """
    steps, network = transforms(model, **preprocess).preprocess.to_dict(), model
    facts: Table = getattr(getattr(model, "head", None), "facts", {})  # of weights with this head
    extra = {name: facts[name] for name in KINDS if facts.get(name)}
    if left := sorted({"temperature", "thresholds"} & facts.keys()):
        note(f"{' and '.join(left)} of the weights are not saved; vit.save(vit.load(...)) does")
    if isinstance(model, Classifier):
        network, classes = model.model, classes or model.classes
        extra = {"temperature": model.temperature, "tree": model.tree}
        if model.multilabel:
            thresholds = carried_over(model.thresholds, 1 / model.temperature)
            extra |= {"multilabel": True, "thresholds": thresholds}
    if not isinstance(network, VisionTransformer | ResNet):
        raise UserError(f"save takes a network of this package, not {type(network).__name__}")
    save_native(folder, network, classes=classes, preprocess=steps, extra=extra)
    return Path(folder)


def _table(command: str, *words: str, **options: object) -> Table:
    return json.loads(_printed(command, [*words, *_words(options), "--json"]))


def _printed(command: str, words: list[str]) -> str:
    """Text that a command prints to stdout."""
    with redirect_stdout(StringIO()) as output:
        resolve(rows("commands")[command])(words)
    return output.getvalue()


def _words(options: dict[str, object]) -> Iterable[str]:
    """Options of a command line: true is a flag, several values stand behind one option. UserError
    for false and None, which no option of a command line has."""
    for name, value in options.items():
        if value is None or value is False or name == "help":
            raise UserError(f"{name}={value}: leave it out")
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif isinstance(value, list | tuple):
            yield from (option, *map(str, value))
        else:
            yield f"{option}={value}"
