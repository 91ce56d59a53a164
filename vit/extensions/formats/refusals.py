"""Reasons for refusing families of ViTs that are published but compute other logits here."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from vit.errors import UserError, shorten

FAMILIES: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("families.yaml").read_text(encoding="utf-8")
)
"""What names say of models; the file explains its keys."""


def reason(name: str) -> str:
    """A part of the models of that name that ours do not have, or ""."""
    for start, why in FAMILIES["refused"].items():
        if re.search(rf"(^|[_./-])({start})", name.lower()):
            return why
    return ""


def refused(owner: str, name: str) -> UserError:
    """The error for a family that is on no list of equal ones."""
    if why := reason(name):
        return UserError(f"{owner}'s {shorten(name)} has {why}, which is not supported here")
    return UserError(
        f"{owner}'s {shorten(name)} is no model that is known here to give the same logits"
    )


def sign_of_others(path: object, keys: Iterable[str]) -> UserError | None:
    """The error if a tensor's name shows a part that our models do not have."""
    keys = list(keys)
    for sign, why in FAMILIES["signs"].items():
        if any(re.search(sign, key) for key in keys):
            return UserError(f"{path} has {why}, which is not supported here")
    return None
