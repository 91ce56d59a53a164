"""Models to export: network, preprocessing, classes and origin."""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from vit.console import note
from vit.data.sources import ImageSet, PathList
from vit.errors import UserError
from vit.extensions.backbones.image_transform import transforms
from vit.extensions.licences.rows import KEY
from vit.extensions.serving.engines import Description, EngineClassifier
from vit.extensions.serving.graph import Graph
from vit.inference.classifier import Classifier, load
from vit.inference.runtimes import is_export
from vit.models.zoo import Model
from vit.preprocessing import Size
from vit.weights.pretrained import inspect_pretrained, load_pretrained
from vit.weights.sealed import fingerprint


def described(
    model: "str | Path | Classifier | Model", size: Size | None = None
) -> tuple[Graph, Description]:
    """The graph of a model, for images of its own size or of another, and its description.

    UserError without preprocessing, and for a size that the model does not take.
    """
    source = None
    exported = isinstance(model, EngineClassifier)
    if exported or (isinstance(model, str | Path) and is_export(model)):
        raise UserError(f"{model} is exported already; export the model that it was made from")
    if isinstance(model, str | Path):
        path = Path(model).expanduser()
        source = path.absolute().name if path.exists() else str(model)
        model = _loaded(model)
    several: dict[str, Any] = {}
    if isinstance(model, Classifier):
        network: Any = model.model
        preprocess, classes = model.preprocess, model.classes
        several = {"temperature": model.temperature}
        if model.multilabel:
            several |= {"multilabel": True, "thresholds": model.thresholds}
    else:
        network, classes = model, None
        preprocess = transforms(network).preprocess
    preprocess = preprocess.changed(image_size=size or preprocess.image_size)
    graph = Graph(network, preprocess, **several)
    return graph, Description(
        outputs=graph.names,
        classes=classes,
        preprocess=preprocess,
        **several,
        tree=isinstance(model, Classifier) and model.tree,
        source=source,
        sha256=fingerprint(network.state_dict()),
        licences=network.inherited.get(KEY, []),
        version=version("vitkit"),
    )


def _loaded(path: str | Path) -> "Classifier | Model":
    """A classifier, or the model of a file without a head."""
    if inspect_pretrained(path).config.num_classes:
        return load(path)
    model, report = load_pretrained(path)
    for text in report.notes:
        note(text)
    return model


def files(paths: Iterable[str | Path]) -> ImageSet:
    """Files as images without labels."""
    names = PathList([str(path) for path in paths])
    return ImageSet(names, np.zeros(len(names)), names)
