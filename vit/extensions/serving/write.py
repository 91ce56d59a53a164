"""A trained model in the file of another runtime, kept only if its answers are the model's."""

import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vit.errors import MESSAGE, UserError, did_you_mean, needed, shorten
from vit.extensions.serving.engines import (
    KEY,
    SUFFIXES,
    Arrays,
    Description,
    exported,
    open_engine,
    openvino_part,
    seal,
    to_openvino,
)
from vit.extensions.serving.graph import Graph
from vit.extensions.serving.page import page_of, write_page
from vit.extensions.serving.proof import Proof, Run, cut, drawn, prove
from vit.extensions.serving.sole_writer import sole_writer
from vit.extensions.serving.source import described
from vit.inference.classifier import Classifier
from vit.models.zoo import Model
from vit.writing import beside as temporary_name
from vit.writing import naming, writable

OTHERS = (".tflite", ".pb", ".engine", ".mlmodel", ".mlpackage", ".pt", ".pth", ".safetensors")
"""Of formats that people export to elsewhere."""
PROBE = 2**20
"""Bytes that a full disk does not take."""
Format = Literal["onnx", "openvino", "pt2"]


class Differs(RuntimeError):
    """An exported model differs too much from PyTorch; its file was not kept."""


@dataclass(frozen=True)
class Exported:
    """Result of `export`."""

    files: list[Path]
    detail: str
    """Such as the opset."""
    proof: Proof


def export(
    model: "str | Path | Classifier | Model",
    dst: str | Path,
    *,
    format: Format | None = None,
    check: Sequence[object] | None = None,
    origin: str = "given pictures",
    opset: int | None = None,
    overwrite: bool = False,
) -> Exported:
    """Writes a model for another runtime: pixels go in, the normalisation is inside.

    Args:
        model: A path, name or address as for `vit.load`, also of a backbone; or a Classifier or a
            model in memory.
        dst: The file; the format's suffix is added if it has another.
        format: onnx, openvino or pt2 (torch.export). Default: by the suffix of `dst`, or onnx.
        check: Pictures (paths, PIL images, arrays) on which the file's answers are compared with
            PyTorch's. Default: drawn ones.
        origin: Where these pictures are from.
        opset: Of ONNX. Default: torch's.
        overwrite: Replaces files that are there.

    Raises:
        UserError: The model cannot be exported, or the destination is in use.
        Differs: An output differs by more than 1e-4 of its largest value, or an answer differs.
    """
    path, kind = destination(Path(dst).expanduser(), format, overwrite)
    if opset is not None and kind != "onnx":
        raise UserError(f"opset={opset} is for ONNX; leave it out for {kind}")
    graph, description = described(model)
    preprocess = graph.preprocess
    if check is None:
        pixels, origin = drawn(preprocess), "20 pictures drawn by a seed"
    else:
        pixels = cut(check, preprocess)
    with beside(path) as folder:
        file = folder / path.name
        run, detail = written(kind, graph, description, file, opset)
        proof = prove(graph, run, pixels, origin)
        if not proof.passed:
            raise Differs(f"{path} was not kept, as it answers differently: {proof.line()}")
        if kind != "pt2":
            write_page(file, kind, description)
        return Exported(moved(folder, path), detail, proof)


def destination(path: Path, format: str | None, overwrite: bool) -> tuple[Path, str]:
    """The file and its format; UserError for an unknown format, or a file that is there."""
    by_suffix, suffix = {suffix: name for name, suffix in SUFFIXES.items()}, path.suffix.lower()
    if suffix in OTHERS:
        raise UserError(f"{path}: {suffix} is not written here; give .onnx, .xml or .pt2")
    format = format or by_suffix.get(suffix, "onnx")
    if format not in SUFFIXES:
        hint = did_you_mean(format, SUFFIXES) or f"; choose {' | '.join(SUFFIXES)}"
        raise UserError(f"format={format!r} is unknown{hint}")
    if suffix != SUFFIXES[format]:
        path = path.with_name(path.name + SUFFIXES[format])
    if path.is_dir():
        raise UserError(f"{path} is a folder; give another name")
    files = [path, page_of(path, format)]
    files += [path.with_suffix(".bin")] if format == "openvino" else []
    existing = [file for file in files if file.exists()]
    if existing and not overwrite:
        raise UserError(
            f"{existing[0]} is there already; give another name, or overwrite it (--overwrite)"
        )
    writable(path.parent, "the folder")
    return path, format


def written(
    kind: str, graph: Graph, description: Description, path: Path, opset: int | None
) -> tuple[Run, str]:
    """Writes the file; returns the function that answers with it, and a detail for people."""
    if kind == "onnx":
        detail = _write_onnx(graph, description, path, opset)
        seal(path)
        return open_engine(path).run, detail
    if kind == "openvino":
        save_openvino(to_openvino(graph), description, path)
        engine = open_engine(path)
        return engine.run, engine.name
    content = BytesIO()  # torch aborts the process where a disk is full
    torch.export.save(exported(graph), content, extra_files={f"{KEY}.json": description.to_json()})
    path.write_bytes(content.getbuffer())
    module = torch.export.load(path).module()

    @torch.inference_mode()
    def run(images: np.ndarray) -> Arrays:
        outputs = module(torch.from_numpy(images))
        return {n: t.numpy() for n, t in zip(graph.names, outputs, strict=True)}

    return run, f"torch.export of torch {torch.__version__.partition('+')[0]}"


def save_openvino(model: Any, description: Description, path: Path) -> None:
    """Writes OpenVINO's model with its description. OSError on a full disk."""
    model.set_rt_info(description.to_json(), [KEY])
    try:
        openvino_part("openvino").save_model(model, path, compress_to_fp16=False)
    except RuntimeError:  # without the system's reason, which is that of any other write
        with path.open("ab") as file:
            file.write(bytes(PROBE))
        raise
    seal(path)


def _write_onnx(graph: Graph, description: Description, path: Path, opset: int | None) -> str:
    """Writes and checks the file; returns its opset for people."""
    onnx = needed("onnx", "onnx")
    needed("onnxscript", "onnx")
    try:
        with quiet():
            program = torch.onnx.export(
                exported(graph),
                input_names=["images"],
                output_names=graph.names,
                dynamic_shapes={"images": {0: "batch"}},  # else s31
                opset_version=opset,
                dynamo=True,
            )
            assert program is not None
            program.model.metadata_props[KEY] = description.to_json()
            program.save(path)
            onnx.checker.check_model(path, full_check=True)
    except (torch.onnx.OnnxExporterError, onnx.checker.ValidationError) as error:
        reason = shorten(" ".join(str(error.__cause__ or error).split()), MESSAGE)
        raise UserError(f"the model cannot be written for opset={opset}: {reason}") from error
    written = program.model.opset_imports[""]
    if opset not in (None, written):  # an old one is ignored
        raise UserError(f"the model cannot be written for opset={opset}; {written} can")
    return f"opset {written}"


@contextmanager
def quiet() -> Iterator[None]:
    """Silences what libraries print and warn about their own workings."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A temporary folder on the same disk as `path`, which errors of the disk name."""
    folder = temporary_name(path)
    with sole_writer(path, str(path)), naming(path):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def moved(folder: Path, path: Path) -> list[Path]:
    """Moves the files beside `path`; the file that is opened comes last."""
    inside = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
    for file in inside:
        os.replace(file, path.with_name(file.name))
    return [path.with_name(file.name) for file in reversed(inside)]
