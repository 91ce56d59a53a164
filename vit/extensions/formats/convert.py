"""Conversion between all layouts that are read and written, and the difference of two files."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vit.errors import UserError
from vit.extensions.formats.exporting import (
    Export,
    NativeInfo,
    Writable,
    carried,
    without_temperature,
)
from vit.extensions.formats.hub import fetch, is_address
from vit.models.fields import JsonObject
from vit.models.zoo import Model
from vit.tables import resolve, rows
from vit.weights.names import TRAINED_ON, record_of
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained
from vit.weights.report import LoadReport
from vit.weights.weight_file import IN_DIRECTORY
from vit.writing import write_bytes


@dataclass(kw_only=True)
class Conversion:
    """The account of a conversion."""

    loaded: LoadReport
    written: list[str]
    notes: list[str]
    """Where the other library's arithmetic differs from the model's."""


def convert(
    source: str | Path,
    destination: str | Path,
    to: str,
    *,
    overwrite: bool = False,
    raw: bool = False,
    **options: Any,
) -> Conversion:
    """Writes the model in `source` in a format of the table; `options` as for `load_pretrained`.

    A temperature of the probabilities is kept in our format. The others have no word for it: the
    head is divided by it. `raw` leaves it out.
    UserError for a model that the library does not have, and for a destination of the wrong kind,
    a run, or one that holds a model, without `overwrite`.
    """
    formats = writable_formats()
    if to not in ("native", *formats):
        raise UserError(f"format {to!r} is not one of {', '.join(('native', *formats))}")
    target, suffix = Path(destination), formats[to].suffix if to in formats else ""
    _check_kind(to, target, suffix, {each.suffix for each in formats.values() if each.suffix})
    _check_free(target, overwrite)
    path = fetch(str(source)) if is_address(source) else source
    model, report, extra = _loaded(path, options)
    report.source = str(source)
    extra = {"source": str(source), **extra, **model.inherited}
    extra |= {"temperature": None if raw else report.temperature, "thresholds": report.thresholds}
    extra = {name: value for name, value in extra.items() if value is not None}
    info = NativeInfo(report.classes, report.preprocess, extra)
    if to == "native":
        save = partial(save_native, model=model, **vars(info))
        export = Export(save=save, multilabel=True)
    else:
        export = _export(formats[to](), model, info)
    written, notes = export.save(target), export.notes
    if (record := record_of(source)) is not None:
        if suffix:
            notes.append(f"a file has no record of the images that were learned ({record})")
        else:
            written.append(target / TRAINED_ON)
            write_bytes(target / TRAINED_ON, record.read_bytes())
    if not suffix:
        for name in _IN_MODEL_DIRECTORY:
            if target / name not in written:
                (target / name).unlink(missing_ok=True)  # of the model before
    notes += _unsaid(to, extra, export)
    return Conversion(loaded=report, written=[str(path) for path in written], notes=notes)


def _loaded(path: str | Path, options: JsonObject) -> tuple[Model, LoadReport, JsonObject]:
    """The model, by a row of the table `texts` if an option names one; with its `extra`."""
    readers = [resolve(row) for name, row in rows("texts").items() if name in options]
    if readers:
        model, report = readers[0](path, **options)
        return model, report, {"multilabel": True} if report.multilabel else {}
    model, report = load_pretrained(path, published_size=False, head="score", **options)
    return model, report, inspect_pretrained(path, **options).extra


def _export(target: Writable, model: Model, info: NativeInfo) -> Export:
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    temperature = info.extra.get("temperature")
    if temperature is not None:
        state, info = without_temperature(state, info)
    export = target.write(model.config, state, info)
    if temperature is not None:
        export.notes.insert(0, f"the head is divided by the temperature {temperature:.3g}")
    return export


_IN_MODEL_DIRECTORY = (
    *(*IN_DIRECTORY, "model.safetensors.index.json", TRAINED_ON),
    *("config.json", "preprocessor_config.json", "processor_config.json"),
)


def writable_formats() -> dict[str, type[Writable]]:
    """Name -> format of another project that models are written in."""
    formats = {name: resolve(row) for name, row in rows("formats").items()}
    return {name: kind for name, kind in formats.items() if issubclass(kind, Writable)}


def _unsaid(to: str, extra: dict[str, object], export: Export) -> list[str]:
    """Notes on what the other format does not say of the outputs."""
    notes = []
    if to != "native" and writable_formats()[to].suffix:
        lost = ["class names, size, mean, std and crop", *["the licences"] * bool(carried(extra))]
        notes = [f"{to} has no word for {what}: pass them on beside the file" for what in lost]
    if extra.get("multilabel") and not export.multilabel:
        notes.append(f"{to} has no word for several labels per image: take sigmoids, not softmax")
    if extra.get("regression") and to not in ("native", "huggingface"):
        notes.append(f"{to} has no word for a regression: its outputs are no classes")
    return notes


def _check_kind(to: str, target: Path, suffix: str, suffixes: set[str]) -> None:
    """UserError for a file in place of a directory, and the other way round."""
    if suffix and target.suffix != suffix:
        raise UserError(f"{to} wants one file: name it {target.with_suffix(suffix)}")
    if not suffix and (target.is_file() or target.suffix in {".safetensors", *suffixes}):
        raise UserError(f"{to} wants a directory, and {target} is a file")


def _check_free(target: Path, overwrite: bool) -> None:
    """UserError for a destination that holds something."""
    if (target / "config.yaml").exists() or (target / "model" / "config.json").exists():
        raise UserError(f"{target} is a run, which a model would hide in; name another directory")
    taken = target.is_file() or any((target / name).exists() for name in _IN_MODEL_DIRECTORY)
    if taken and not overwrite:
        remedy = "add --overwrite to replace it, or name another destination"
        raise UserError(f"{target} holds a model; {remedy}")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The outputs of two files for the same random images, over the temperatures of the files."""

    image_size: tuple[int, int]
    largest_difference: float
    """Largest absolute difference of the logits, or of the features of backbones."""
    largest_output: float
    """Largest absolute output of the first file."""

    @property
    def relative(self) -> float:
        """Largest difference over largest output."""
        return self.largest_difference / max(self.largest_output, 1e-30)


def compare(
    first: str | Path, second: str | Path, *, raw: bool = False, **options: Any
) -> Difference:
    """Runs two files on two random images in double precision, at the first one's image size.

    `raw`: the logits are not divided by the temperatures.
    """
    options = {"published_size": False, "head": "score", **options}
    one, of_first = load_pretrained(first, **options)
    size = one.config.size
    other, of_second = load_pretrained(second, **{**options, "image_size": size})
    shape = (2, one.config.in_channels, *size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        a, b = (model.double().eval()(images) for model in (one, other))
    if not raw:
        a, b = a / (of_first.temperature or 1.0), b / (of_second.temperature or 1.0)
    if a.shape != b.shape:
        raise UserError(f"{first} has {a.shape[1]} outputs, {second} {b.shape[1]}")
    return Difference(
        image_size=size,
        largest_difference=(a - b).abs().max().item(),
        largest_output=a.abs().max().item(),
    )
