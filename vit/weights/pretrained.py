"""Models with weights from a file: any published layout, any image size, a new head if wanted.

A model is built on the meta device, everything is checked, and only then are tensors read and put
in place; a file that does not fit changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.fields import JsonObject, as_size
from vit.models.zoo import Model, ModelConfig, build_model, model_config
from vit.synonyms import keywords
from vit.tables import resolve, rows
from vit.weights import names
from vit.weights.adapt import HeadRows, adapt, same_architecture
from vit.weights.building import filled
from vit.weights.formats import Recognised, recognise
from vit.weights.heads import check_names, unanswerable
from vit.weights.names import NamedWeights
from vit.weights.report import LoadReport, print_report
from vit.weights.weight_file import SETS, WeightFile, WeightSet, open_weights


@keywords
def create_model(
    name: str | None = None,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    pretrained: str | Path | bool | None = None,
    classes: Sequence[str] | None = None,
    head: HeadRows = "fit",
    weights: WeightSet | None = None,
    report: Callable[[LoadReport], object] = print_report,
    **overrides: Any,
) -> Model:
    """A model by name, from a file, or both (then the file must hold that architecture).

    `name`: an architecture (`vit models`), or NAME.TAG of published weights (`vit models
    --weights`). `num_classes`: 0 for a backbone; None, and the number of a file, keep its head.
    `image_size`: pixels, one side or (height, width). `pretrained`, `classes`, `head`, `weights`:
    see `load_pretrained`; True means the published weights of `name`, False random ones. `report`
    receives the account of the load. `overrides`: fields of ViTConfig or ResNetConfig.
    """
    name, pretrained = _published(name, pretrained)
    check_names(classes)
    if num_classes is None and classes is not None:
        num_classes = len(classes)
    sizes = {"num_classes": num_classes, "image_size": image_size}
    if pretrained is not None:
        choice = {"classes": classes, "head": head, "weights": weights}
        model, account = load_pretrained(pretrained, name, **sizes, **choice, **overrides)
        report(account)
        return model
    if weights is not None:
        raise UserError(f"weights={weights} chooses among those of a file: give pretrained")
    if name is None:
        raise UserError("create_model needs a name, such as 'vit_b16', or pretrained=...")
    sizes = {field: value for field, value in sizes.items() if value is not None}
    return build_model(model_config(name, **sizes, **overrides))


def _published(
    name: str | None, pretrained: str | Path | bool | None
) -> tuple[str | None, str | Path | None]:
    """Architecture and weights that a name and `pretrained` mean together. UserError for a path in
    place of a name, and for another package's name without its weights."""
    weights = None if pretrained is False or pretrained is True else pretrained
    if name is None:
        if pretrained is not True:
            return None, weights
        raise UserError(
            "pretrained=True means the published weights of a model's name; give one, such as "
            "create_model('vit_s16', pretrained=True), or a file, a directory or an address"
        )
    unknown = not pretrained and names.architecture_of(name) is None
    if unknown and Path(name).expanduser().exists():
        raise UserError(f"{name} is a path: create_model(pretrained={name!r}) loads it")
    # A tag means its weights; so does timm's spelling with one, and a repository of the hub.
    if pretrained is True or names.means_weights(name):
        row = names.find(name)
        return row.architecture, weights if pretrained is False else weights or row.name
    if unknown and (row := names.exact(name)) is not None:
        raise UserError(
            f"{name!r} is the name of weights: create_model({name!r}, pretrained=True) loads them; "
            f"random ones of the architecture: create_model({row.architecture!r})"
        )
    return name, weights


def load_pretrained(
    pretrained: str | Path,
    name: str | None = None,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    head: HeadRows = "fit",
    published_size: bool = True,
    weights: WeightSet | None = None,
    **overrides: Any,
) -> tuple[Model, LoadReport]:
    """A model with the weights of a file, in float32, and the account of the load.

    `pretrained`: a name of published weights (`vit models --weights`), whose image size and
    normalisation are the published ones; an address (hf://org/repo, gs://bucket/file, https://...);
    a run or model directory; or a file (.safetensors, .npz, .pth) of Google, timm, torchvision,
    Hugging Face, DINOv2 or ours. Facts that change the logits and that it does not record are
    taken from `overrides` (num_heads, activation, pos_embed), or it is refused.
    `classes`: their names choose the rows of the head, as `head` says (`HeadRows`); with only
    `num_classes` they are kept where the number is the file's. New rows are zero.
    `published_size`: False keeps a file's own positions (DINOv2's are for larger images).
    `weights`: of a file with both, the raw weights of a training or their average, the default.
    UserError for a file that is damaged, needs code to be executed, or does not fit.
    """
    check_names(classes)
    recognised, row, file = _open(pretrained, image_size, overrides, weights)
    if row is not None and published_size and recognised.config.size != row.size:
        image_size = image_size or row.size
    if row is not None and not row.outputs and num_classes is None and classes is None:
        num_classes = 0  # several of Google's files have a head of zeros
    recognised.source = str(pretrained) if row is None else row.name
    _check_architecture(recognised, name, pretrained)
    target = adapt(
        recognised,
        num_classes=num_classes,
        image_size=image_size,
        classes=classes,
        head=head,
        overrides=overrides,
    )
    model = filled(target, recognised)
    recognised.loaded = sum(name in recognised.tensors for name in model.state_dict())
    recognised.tensors, recognised.check = {}, None  # which hold the file
    _describe(recognised, target, named=row is not None)
    if image_size is not None and recognised.preprocess is not None:
        recognised.preprocess = {**recognised.preprocess, "image_size": list(target.size)}
    model.preprocess = recognised.preprocess or {}
    model.head.facts = {} if recognised.reinitialised else recognised.extra  # pyright: ignore
    model.inherited = _inherited(file, row, recognised.extra)
    return model, recognised


def _inherited(file: WeightFile, row: NamedWeights | None, extra: JsonObject) -> JsonObject:
    """Facts that go into all that is made of the weights; {} where nothing states any."""
    recorded = {**file.config, **extra}.get("licences")
    for page, reader in rows("inherited").items():
        if row is not None or recorded or (file.path.parent / page).is_file():
            return resolve(reader)(file, row, recorded)
    return {}


def _describe(report: Recognised, target: ModelConfig, *, named: bool) -> None:
    """Adds what is known of the outputs. `named`: the weights were given by name."""
    count, extra, unnamed = target.num_classes, report.extra, report.classes is None
    report.classes, report.tree = _class_names(report, target), extra.get("tree", False)
    report.multilabel = extra.get("multilabel", False)
    report.unanswerable = unanswerable(count, extra)
    if count and not report.reinitialised:
        report.thresholds = extra.get("thresholds") if report.multilabel else None
        report.temperature = extra.get("temperature")
    if report.classes is not None and unnamed and not named:
        report.notes.append(f"the file names no classes; {count:,} outputs are taken as ImageNet's")
    if report.unprepared:
        report.notes.append(f"how images are prepared is not taken over: {report.unprepared}")


def inspect_pretrained(
    pretrained: str | Path, *, weights: WeightSet | None = None, **facts: Any
) -> Recognised:
    """Architecture, classes, preprocessing and `extra` of a file; no tensor is read.

    `facts`: fields of the configuration that the file does not record, such as num_heads.
    """
    facts = {name: value for name, value in facts.items() if value is not None}
    size = facts.pop("image_size", None)
    recognised, row, _ = _open(pretrained, size, facts, weights)
    config = recognised.config
    if row is not None:
        config = replace(config, image_size=size or row.size)
        if not row.outputs:
            tanh_layer = {"representation_size": None} if isinstance(config, ViTConfig) else {}
            config = replace(config, num_classes=0, **tanh_layer)
    return replace(recognised, config=config, classes=_class_names(recognised, config))


def _open(
    pretrained: str | Path,
    image_size: int | tuple[int, int] | None,
    overrides: Mapping[str, object],
    wanted: WeightSet | None,
) -> tuple[Recognised, NamedWeights | None, WeightFile]:
    """The file of a name, an address or a path; with the row of published weights for a name."""
    hints = dict(overrides)
    if image_size is not None:
        hints["image_size"] = as_size(image_size)
    path, row = names.locate(pretrained)
    if row is not None:
        hints = row.facts | hints
    file = open_weights(path, hints, wanted)
    recognised = recognise(file)
    recognised.unexpected = sorted(
        file.shapes.keys() - recognised.used - recognised.left_out.keys()
    )
    recognised.left_out |= file.left_out
    if file.average:
        recognised.average = True
        recognised.notes.append("these weights are the running average of the training's")
    kind: WeightSet = "average" if recognised.average else "raw"
    if wanted not in (None, kind):
        raise UserError(f"{path} has no {SETS[wanted]}: its only ones are the {SETS[kind]}")
    if row is not None:
        _check_architecture(recognised, row.architecture, path)
        if row.outputs and recognised.config.num_classes != row.outputs:
            raise UserError(
                f"{path} is not {row.name}: it has {recognised.config.num_classes:,} outputs "
                f"instead of {row.outputs:,}"
            )
        recognised.preprocess, recognised.unprepared, recognised.notes = row.preprocess(), "", []
    return recognised, row, file


def _check_architecture(recognised: Recognised, name: str | None, source: str | Path) -> None:
    """UserError for another architecture than `name`; names the weights of this one."""
    if name and (differing := same_architecture(recognised.config, model_config(name))):
        weights = [each for entry in names.entries() for each in entry.of(name)]
        hint = f"; published weights of {name}: {', '.join(weights)}" if weights else ""
        raise UserError(f"{source} is not a {name}: it has {', '.join(differing)}{hint}")


def _class_names(recognised: Recognised, target: ModelConfig) -> list[str] | None:
    if recognised.classes is not None and len(recognised.classes) == target.num_classes:
        return recognised.classes
    if recognised.config.num_classes != target.num_classes or recognised.classes is not None:
        return None
    return names.class_names(target.num_classes)
