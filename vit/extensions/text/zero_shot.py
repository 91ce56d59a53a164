"""Image towers whose head are texts: classes by their names, without a labelled picture.

Shapes: k classes, t templates, p features.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.console import Meter
from vit.errors import UserError, shorten
from vit.extensions.licences.rows import KEY, inherit, say_once
from vit.extensions.text.reading import Texts, read_texts
from vit.extensions.text.tokenizing import TextTokens
from vit.models.config import ViTConfig
from vit.models.fields import JsonObject
from vit.models.zoo import Model
from vit.weights.building import build_empty
from vit.weights.heads import check_names
from vit.weights.names import locate
from vit.weights.pretrained import load_pretrained
from vit.weights.report import LoadReport
from vit.weights.weight_file import open_weights

BATCH = 64
"""Texts at a time."""
USUAL = "a photo of {}."
"""Template without --templates; it goes with names that have an article and with others."""


def load_named(
    pretrained: str | Path,
    *,
    names: str | Sequence[str] | None = None,
    templates: str | Sequence[str] | None = None,
    **facts: Any,
) -> tuple[Model, LoadReport]:
    """Row of the table `texts`: the image tower of a CLIP or SigLIP model with a class per name.

    `names`: a list, or a text with commas between them. `templates`: sentences with {} for the
    name, one or several, or "imagenet" for the 80 of OpenAI. `facts`: as for `load_pretrained`.
    UserError for weights without a text tower or tokenizer that is read here, and for names that
    are none.
    """
    words, sentences = as_names(names), as_templates(templates)
    path, row = locate(pretrained)
    file = open_weights(path, {**(row.facts if row is not None else {}), **facts})
    texts = read_texts(file)
    tokens = TextTokens(file.path.parent, texts.tower.config, texts.clean)
    rows = text_rows(texts, tokens, words, sentences)
    model, report = load_pretrained(pretrained, **facts)
    say_once(tokens.licences)
    inherit(model, {KEY: tokens.licences})
    about: JsonObject = {"templates": templates if templates == "imagenet" else sentences}
    model = with_rows(model, texts, rows, about)
    report.classes, report.multilabel, report.thresholds = words, texts.bias is not None, None
    report.unanswerable, report.temperature, report.head = "", None, f"{len(words):,} names"
    report.left_out.clear()
    if report.multilabel:
        report.notes.append("each number is a score of its own (sigmoid), no share of the names")
    return model, report


def as_names(names: str | Sequence[str] | None) -> list[str]:
    """The names, without spaces around them. UserError for none, and for one twice."""
    if names is None:
        raise UserError("templates go with names, such as --names 'cat,dog'")
    words = names.split(",") if isinstance(names, str) else _texts(names)
    words = [name.strip() for name in words]
    check_names(words)
    if len(words) < 2 or not all(words):
        raise UserError(f"names={shorten(repr(names))} are not two names or more, as in 'cat,dog'")
    return words


def as_templates(templates: str | Sequence[str] | None) -> list[str]:
    """Sentences with {} for the name. UserError for another."""
    if templates == "imagenet":
        table = Path(__file__).with_name("imagenet_templates.txt")
        return table.read_text(encoding="utf-8").splitlines()
    sentences = [templates] if isinstance(templates, str) else _texts(templates or [USUAL])
    for sentence in sentences:
        if sentence.count("{}") != 1:
            raise UserError(f"template {shorten(repr(sentence))} has not one {{}} for the name")
    return sentences


def _texts(values: object) -> list[str]:
    texts = [*values] if isinstance(values, Iterable) else []
    if texts and all(isinstance(text, str) for text in texts):
        return texts
    raise UserError(f"{shorten(repr(values))} is not a list of texts")


@torch.inference_mode()
def text_rows(
    texts: Texts, tokens: TextTokens, names: Sequence[str], templates: Sequence[str]
) -> Tensor:
    """Directions of the names, `k p`: features over their norm, their mean over the templates, and
    that over its norm (openai/CLIP, notebooks/Prompt_Engineering_for_ImageNet.ipynb)."""
    ids = tokens([each.replace("{}", name) for name in names for each in templates])
    first: dict[str, str] = {}
    for name, its in zip(names, ids.unflatten(0, (len(names), -1)).tolist(), strict=True):
        if (other := first.setdefault(str(its), name)) is not name:
            raise UserError(f"{other!r} and {name!r} have the same tokens: leave one of them out")
    parts: list[Tensor] = []
    with Meter("names", len(ids), "texts") as meter:
        for batch in ids.split(BATCH):
            parts.append(F.normalize(texts.tower(batch), dim=-1))
            meter.advance(len(batch))
    rows = torch.cat(parts).unflatten(0, (len(names), -1)).mean(1)
    if not rows.isfinite().all():
        raise UserError("the features of the names are not finite: the weights are damaged")
    return F.normalize(rows, dim=-1)


def with_rows(model: Model, texts: Texts, rows: Tensor, about: JsonObject) -> Model:
    """The image tower with a head of rows `k p`; its own head, if any, is the projection.

    UserError for a tower that has no features of the texts' width.
    """
    config, state = model.config, model.state_dict()
    width = config.num_classes
    bias = state.pop("head.bias", None)
    if not isinstance(config, ViTConfig) or (bias is not None and bool(bias.any())):
        raise UserError("the image tower is none of CLIP or SigLIP: its projection has a bias")
    if (width or config.pooled_width) != rows.shape[1]:
        raise UserError(
            f"images have {width or config.pooled_width} features, texts {rows.shape[1]}: the "
            "image tower lacks its projection, or is another model's"
        )
    if width:
        state["pre_logits.projection.weight"] = state.pop("head.weight")
    state["head.weight"] = rows.clone() * texts.scale
    state["head.bias"] = rows.new_full((len(rows),), texts.bias or 0.0).clone()
    cosine = {"projection": width, **about}
    named = build_empty(replace(config, num_classes=len(rows), cosine=cosine))
    named.load_state_dict(state, strict=True, assign=True)
    named.preprocess, named.inherited = model.preprocess, model.inherited
    return named.train(model.training)
