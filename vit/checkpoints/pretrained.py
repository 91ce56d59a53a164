"""Models with weights from a file: any published layout, any image size, a new head if wanted.

A model is built on the meta device, everything is checked, and only then are tensors read and put
in place; a file that does not fit changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vit.checkpoints import published
from vit.checkpoints.adapt import HEAD, IMAGENET_CLASSES, adapt, same_architecture, with_image_size
from vit.checkpoints.building import build_empty
from vit.checkpoints.class_names import (
    IMAGENET21K_CLASSES,
    check_names,
    imagenet21k_classes,
    imagenet_classes,
)
from vit.checkpoints.detect import recognise
from vit.checkpoints.files import open_weights
from vit.checkpoints.hub import locate
from vit.checkpoints.layout import ModelConfig, Recognised, listed
from vit.checkpoints.published import Published
from vit.checkpoints.report import LoadReport, print_report
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.zoo import Model, build_model, model_config


@dataclass(frozen=True, kw_only=True)
class PretrainedInfo:
    """What a file says about its model, read without its tensors."""

    source: str
    format: str
    config: ModelConfig
    classes: list[str] | None = None
    """Class names in the order of the logits, where known."""
    preprocess: dict[str, Any] | None = None
    """How images are brought to the model, where known; for Preprocess.from_dict."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Recipe, metrics and source of a model of ours."""


def create_model(
    name: str | None = None,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    pretrained: str | Path | bool | None = None,
    classes: Sequence[str] | None = None,
    report: Callable[[LoadReport], object] = print_report,
    **overrides: Any,
) -> Model:
    """A model by name, from a file, or both (then the file must hold that architecture).

    `name`: an architecture (`vit models`), or NAME.TAG of published weights (`vit models
    --weights`), which are loaded. `num_classes`: 0 for a backbone; with `pretrained`, None keeps
    the file's head. `image_size`: pixels, one side or (height, width). `pretrained`: see
    `load_pretrained`; True means the published weights of `name`, False random ones.
    `report` receives the account of the load; by default it is printed. `overrides`: fields of
    ViTConfig or ResNetConfig. In training mode, as every new module.
    """
    name, pretrained = _published(name, pretrained)
    if pretrained is not None:
        model, account = load_pretrained(
            pretrained,
            name,
            num_classes=num_classes,
            image_size=image_size,
            classes=classes,
            **overrides,
        )
        report(account)
        return model
    if name is None:
        raise UserError("create_model needs a name, such as 'vit_b16', or pretrained=...")
    check_names(classes)
    if num_classes is None and classes is not None:
        num_classes = len(classes)
    given = {"num_classes": num_classes, "image_size": image_size}
    given = {field: value for field, value in given.items() if value is not None}
    return build_model(model_config(name, **given, **overrides))


def _published(
    name: str | None, pretrained: str | Path | bool | None
) -> tuple[str | None, str | Path | None]:
    """Architecture and weights that a name and `pretrained` mean together."""
    if pretrained is True:
        if name is None:
            raise UserError(
                "pretrained=True means the published weights of a model's name; give one, such as "
                "create_model('vit_s16', pretrained=True), or a file, a directory or an address"
            )
        row = published.find(name)
        return row.architecture, row.name
    # A tag means its weights; so does timm's spelling with one, and a repository of the hub.
    if isinstance(name, str) and published.means_weights(name):
        row = published.find(name)
        return row.architecture, (row.name if pretrained is None else pretrained or None)
    return name, pretrained or (None if pretrained is False else pretrained)


def load_pretrained(
    pretrained: str | Path,
    name: str | None = None,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    published_size: bool = True,
    **overrides: Any,
) -> tuple[Model, LoadReport]:
    """A model with the weights of a file, in float32, and the account of what was done.

    `pretrained`: a name of published weights (`vit models --weights`), whose image size and
    normalisation are the published ones; an address (hf://org/repo, gs://bucket/file, https://...;
    see vit/checkpoints/hub.py); a run or model directory; or a file (.safetensors, .npz, .pth) of
    Google, timm, torchvision, Hugging Face, DINOv2 or ours; what it is, its contents say. Facts
    that change the logits and that it does not record are taken from `overrides` (num_heads,
    activation, pos_embed), or it is refused.
    `classes`: names of the classes wanted; the head is kept where they are the file's, else zero.
    `published_size`: False keeps the positions that a name's file has, where they are for other
    images than the published ones (DINOv2).
    Raises UserError for a file that is damaged, needs code to be executed, or does not fit.
    """
    check_names(classes)
    found, row = _open(pretrained, image_size, overrides)
    resized = row is not None and found.config.size != row.size
    if row is not None and resized and image_size is None and published_size:
        image_size = row.size
    if row is not None and not row.outputs and num_classes is None and classes is None:
        num_classes = 0  # several of Google's files have a head of zeros
    report = LoadReport(
        source=row.name if row is not None else str(pretrained),
        format=found.format,
        left_out=dict(found.left_out),
        notes=list(found.notes),
    )
    if name is not None:
        _check_architecture(found, name, pretrained)
    target = adapt(
        found,
        report,
        num_classes=num_classes,
        image_size=image_size,
        classes=classes,
        overrides=overrides,
    )
    model = _filled(found, target, report, str(pretrained))
    report.classes = _class_names(found, target)
    report.multilabel = bool(found.extra.get("multilabel", False))
    if report.multilabel and not report.reinitialised:
        report.thresholds = found.extra.get("thresholds")
    if report.classes is not None and found.classes is None and row is None:
        report.notes.append(
            f"the file names no classes; {target.num_classes:,} outputs are taken as ImageNet's"
        )
    report.preprocess, report.unprepared = found.preprocess, found.unprepared
    if found.unprepared:
        report.notes.append(f"how images are prepared is not taken over: {found.unprepared}")
    if image_size is not None:
        report.preprocess = with_image_size(found.preprocess, target)
    model.preprocess = report.preprocess or {}
    return model, report


def inspect_pretrained(pretrained: str | Path, **facts: Any) -> PretrainedInfo:
    """Architecture, classes and preprocessing of a file; no tensor is read.

    `facts`: fields of the configuration that the file does not record, such as num_heads.
    """
    given = {name: value for name, value in facts.items() if value is not None}
    size = given.pop("image_size", None)
    found, row = _open(pretrained, size, given)
    config = found.config
    if row is not None:
        config = replace(config, image_size=size or row.size)
        if not row.outputs:
            config = replace(config, num_classes=0)
        if not row.outputs and isinstance(config, ViTConfig):
            config = replace(config, representation_size=None)  # goes with the head
    return PretrainedInfo(
        source=row.name if row is not None else str(pretrained),
        format=found.format,
        config=config,
        classes=_class_names(found, config),
        preprocess=found.preprocess,
        extra=found.extra,
    )


def _open(
    pretrained: str | Path,
    image_size: int | tuple[int, int] | None,
    overrides: dict[str, Any],
) -> tuple[Recognised, Published | None]:
    """The file of a name, an address or a path; with the row of published weights for a name."""
    hints = dict(overrides)
    if image_size is not None:
        side = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        hints["image_size"] = side
    path, row = locate(pretrained)
    if row is not None:
        hints = row.facts | hints
    file = replace(open_weights(path), hints=hints)
    found = recognise(file)
    unexpected = set(file.shapes) - found.used - set(found.left_out)
    if unexpected:
        found.unexpected = sorted(unexpected)
    if row is not None:
        _check_architecture(found, row.architecture, path)
        if row.outputs and found.config.num_classes != row.outputs:
            raise UserError(
                f"{path} is not {row.name}: it has {found.config.num_classes:,} outputs instead of "
                f"{row.outputs:,}"
            )
        # It knows how images are prepared, and what a file alone does not say.
        found.preprocess, found.unprepared, found.notes = row.preprocess(), "", []
    return found, row


def _check_architecture(found: Recognised, name: str, source: str | Path) -> None:
    """UserError where the file has another architecture; names the weights of this one."""
    differing = same_architecture(found.config, model_config(name))
    if differing:
        rows = published.table().values()
        names = [row.name for row in rows if row.architecture == name]
        hint = f"; published weights of {name}: {', '.join(names)}" if names else ""
        raise UserError(f"{source} is not a {name}: it has {', '.join(differing)}{hint}")


def _filled(found: Recognised, target: ModelConfig, report: LoadReport, source: str) -> Model:
    model = build_empty(target)
    wanted = model.state_dict()
    fresh = {key for key in wanted if report.reinitialised and key.startswith(HEAD)}
    missing = set(wanted) - set(found.tensors) - fresh
    extra = [*found.unexpected, *(set(found.tensors) - set(wanted))]
    if missing or extra:
        parts = [
            f"{len(keys)} {what}: {listed(keys, sign)}"
            for keys, what, sign in ((missing, "missing", "-"), (extra, "unexpected", "+"))
            if keys
        ]
        reason = f"it has {found.foreign}; " if found.foreign else ""
        raise UserError(f"{source} does not fit: {reason}{'; '.join(parts)}")
    found.check()
    state = {key: torch.zeros(wanted[key].shape) for key in fresh}
    misfits = []
    for key in wanted:
        if key in fresh:
            continue
        # float32 whatever the file: half precision is a choice of the run, not of the file.
        tensor = found.tensors[key]().float().contiguous()
        if tensor.shape != wanted[key].shape:
            misfits.append(f"{key} {list(tensor.shape)} instead of {list(wanted[key].shape)}")
        state[key] = tensor
    if misfits:
        raise UserError(f"{source} does not fit: {listed(misfits)}")
    model.load_state_dict(state, strict=True, assign=True)
    report.loaded = len(wanted) - len(fresh)
    return model


def _class_names(found: Recognised, target: ModelConfig) -> list[str] | None:
    if found.classes is not None and len(found.classes) == target.num_classes:
        return found.classes
    if found.config.num_classes != target.num_classes or found.classes is not None:
        return None
    names = {IMAGENET_CLASSES: imagenet_classes, IMAGENET21K_CLASSES: imagenet21k_classes}
    return names[target.num_classes]() if target.num_classes in names else None
