"""Names, thresholds and kind of the labels in the config.json of transformers."""

from typing import Any

from vit.weights.heads import check_labels

THRESHOLDS = "label_thresholds"
"""Field of config.json with a threshold per class; transformers keeps it and does not use it."""


def names_in(config: dict[str, Any], num_classes: int) -> list[str] | None:
    """id2label in order; transformers' placeholders LABEL_0, LABEL_1 ... are no names."""
    labels = {int(key): str(name) for key, name in (config.get("id2label") or {}).items()}
    if sorted(labels) != list(range(num_classes)) or not labels:
        return None
    names = [labels[i] for i in range(num_classes)]
    return None if names == [f"LABEL_{i}" for i in range(num_classes)] else names


def label_kind(config: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """`extra` of a model with several labels per image, and of a regression."""
    kind = config.get("problem_type")
    if kind == "regression":
        return {"regression": True}
    if kind != "multi_label_classification" and config.get(THRESHOLDS) is None:
        return {}
    extra = {"multilabel": True}
    if config.get(THRESHOLDS) is not None:
        extra["thresholds"] = config[THRESHOLDS]
    check_labels(extra, num_classes)
    return extra


def labels(num_classes: int, classes: list[str] | None) -> dict[str, Any]:
    """id2label and label2id, with transformers' placeholders without names."""
    if not num_classes:
        return {}
    names = classes or [f"LABEL_{i}" for i in range(num_classes)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
