"""Facts of a head's outputs: names and thresholds of classes, and where there are none."""

from collections import Counter

from vit.errors import POSITIVE, SHARE, UserError, check_range, shorten
from vit.models.fields import JsonObject, is_list


def check_names(classes: object, num_classes: int | None = None) -> None:
    """UserError unless `classes` are distinct names, `num_classes` of them if that is given."""
    if classes is None:
        return
    if not is_list(classes) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"classes={shorten(classes)} is not a list of names")
    if num_classes not in (None, len(classes)):
        raise UserError(f"{len(classes)} class names for num_classes={num_classes}")
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise UserError(f"classes has the name {shorten(twice[0])} twice; give each class one name")


def check_labels(extra: JsonObject, num_classes: int) -> None:
    """UserError unless `multilabel` and `tree` are bools, `thresholds` a probability per class, and
    `temperature` positive."""
    for name in ("multilabel", "tree"):
        if not isinstance(extra.get(name, False), bool):
            raise UserError(f"{name}={shorten(extra[name])} is not true or false")
    check_range("temperature", extra.get("temperature", 1.0), POSITIVE)
    thresholds = extra.get("thresholds")
    if thresholds is None:
        return
    if not is_list(thresholds) or len(thresholds) != num_classes:
        raise UserError(f"thresholds={shorten(thresholds)} is not a list of {num_classes} numbers")
    for value in thresholds:
        check_range("a threshold", value, SHARE)


def unanswerable(num_classes: int, extra: JsonObject) -> str:
    """Why the outputs of a model tell no classes apart; "" where they do."""
    if kinds := [kind for kind in ("regression", "projection") if extra.get(kind)]:
        return f"is a {kinds[0]}, its outputs are numbers and no classes"
    if num_classes == 1 and not extra.get("multilabel"):
        return (
            "has one output, which softmax makes 100 % for every image, unless its config.json "
            "says problem_type: multi_label_classification"
        )
    return ""
