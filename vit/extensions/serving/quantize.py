"""An exported model with products of 8 bits, kept only if its accuracy is that of the model.

Shapes: n images, h w pixels, c channels.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.folder import load_folder
from vit.data.sampler import evaluated
from vit.data.scan import image_files
from vit.data.settings import ModelClasses, Reading
from vit.data.sources import ImageSet
from vit.data.trained_on import Known, digests
from vit.errors import UserError, some_of
from vit.extensions.reports.intervals import Paired
from vit.extensions.serving.engines import (
    KEY,
    Description,
    open_engine,
    openvino_core,
    openvino_part,
    seal,
)
from vit.extensions.serving.page import write_page
from vit.extensions.serving.proof import PROOF_IMAGES, Proof, compare, cut, hits, paired, prove
from vit.extensions.serving.source import described, files
from vit.extensions.serving.write import (
    Differs,
    Exported,
    Format,
    beside,
    destination,
    moved,
    quiet,
    save_openvino,
)
from vit.extensions.serving.write import written as written_in_float32
from vit.inference.classifier import Classifier
from vit.models.zoo import Model

MAX_DROP = 0.5
FEWEST, MOST = 32, 300
"""Pictures of a calibration; NNCF's default is the larger number."""


@dataclass(frozen=True)
class Quantized(Exported):
    """Result of `export_int8`. `proof` is of the file in float32 that was quantised."""

    int8: Proof
    """Of the file in int8, on the same pictures."""
    accuracy: Paired
    in_calibration: int
    """Images of the accuracy that are pictures of the calibration."""


def export_int8(
    model: "str | Path | Classifier | Model",
    dst: str | Path,
    calibration: str | Path,
    check: str | Path,
    *,
    format: Format | None = None,
    max_drop: float = MAX_DROP,
    opset: int | None = None,
    overwrite: bool = False,
) -> Quantized:
    """Writes a classifier of one label per image for OpenVINO (by NNCF) or ONNX Runtime, in int8.

    Args:
        model: As for `export`.
        dst: The file, .onnx or .xml.
        calibration: A folder with at least 32 of the pictures that the model is used for; 300 are
            taken, drawn by a seed.
        check: A folder with a folder per class, of other pictures.
        format: onnx or openvino.
        max_drop: Points of accuracy on `check` that may be lost.
        opset: As for `export`.
        overwrite: Replaces files that are there.

    Raises:
        UserError: The model cannot be exported, or one of the folders cannot be used.
        Differs: The float32 model is not exported right, or `max_drop` is exceeded.
    """
    path, kind = destination(Path(dst).expanduser(), format, overwrite)
    if kind == "pt2":
        raise UserError("int8 is for .onnx and .xml files; PyTorch quantises .pt2 models itself")
    graph, about = described(model)
    preprocess = about.preprocess
    paths = calibration_pictures(calibration, about)
    images = labelled_pictures(check, about)
    shown = cut((images.items[i] for i in evaluated(len(images), PROOF_IMAGES, 0)), preprocess)
    with beside(path) as folder, tempfile.TemporaryDirectory() as elsewhere:
        plain, file = Path(elsewhere) / path.name, folder / path.name
        run, _ = written_in_float32(kind, graph, about, plain, opset)
        proof = prove(graph, run, shown, f"{len(shown)} images of {check}")
        if not proof.passed:
            raise Differs(f"{path} was not kept, as float32 answers differently: {proof.line()}")
        pixels = cut(paths, preprocess)
        with quiet():
            QUANTIZERS[kind](plain, file, pixels, replace(about, precision="int8"))
        engine = open_engine(file)
        int8 = compare(graph, engine.run, shown, proof.origin)
        accuracy = paired(*hits([run, engine.run], images, preprocess))
        _check_drop(path, accuracy, len(images), max_drop)
        write_page(file, kind, about)
        detail = f"{engine.name}, calibrated on {len(paths)} pictures of {calibration}"
        common = int(among(images, paths).sum())
        return Quantized(moved(folder, path), detail, proof, int8, accuracy, common)


def check_accuracy(about: Description) -> list[str]:
    """The classes. UserError for a model without, or with several labels per image."""
    if about.classes is None or about.multilabel:
        raise UserError("accuracy is for models with classes and one label per image")
    return about.classes


def labelled_pictures(folder: str | Path, about: Description) -> ImageSet:
    """The pictures of class folders that are scored."""
    arrays = about.preprocess.channels is not None
    asked = Reading(model=ModelClasses(names=check_accuracy(about)), arrays=arrays, tree=about.tree)
    splits = load_folder(folder, asked)
    images = splits.get(splits.scored)
    assert images is not None
    return images


def among(images: ImageSet, paths: list[Path]) -> np.ndarray:
    """True `n` for the images that are some of the files."""
    of_files = digests([files(paths)])
    assert of_files is not None
    return Known(of_files, "").mask(images)


def _check_drop(path: Path, accuracy: Paired, count: int, max_drop: float) -> None:
    """Differs if more points are lost than allowed."""
    if accuracy.drop > max_drop:
        low, high = accuracy.interval
        raise Differs(
            f"{path} was not kept: int8 loses {accuracy.drop:.2f} points of accuracy "
            f"({low:.2f} to {high:.2f}) on {count:,} images, more than {max_drop:g}; "
            f"calibrate on {MOST} pictures like those it will see, or allow more (--max-drop)"
        )


def calibration_pictures(place: str | Path, about: Description) -> list[Path]:
    """Pictures drawn from a folder. UserError for too few, or folders of other classes."""
    folder, arrays = Path(place).expanduser(), about.preprocess.channels is not None
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to calibrate on")
    paths = [Path(path) for path in image_files(str(folder), arrays=arrays)]
    parts = [path.relative_to(folder).parts for path in paths]
    classes = {name.split("/")[0] if about.tree else name for name in check_accuracy(about)}
    if other := sorted({part[0] for part in parts if len(part) > 1} - classes):
        raise UserError(
            f"{folder} has folders that are no classes of the model ({some_of(other, 3)}); "
            "calibrate on pictures of its classes"
        )
    if len(paths) < FEWEST:
        raise UserError(f"{folder} has {len(paths)} pictures; a calibration needs {FEWEST}")
    return [paths[i] for i in evaluated(len(paths), MOST, 0)]


def _openvino(plain: Path, file: Path, pixels: np.ndarray, about: Description) -> None:
    """NNCF's scheme for transformers: symmetric weights, asymmetric activations, SmoothQuant."""
    nncf = openvino_part("nncf")
    data = nncf.Dataset(list(pixels[:, None]), lambda image: {"images": image})
    kind = nncf.ModelType.TRANSFORMER
    model = openvino_core().read_model(plain)
    model = nncf.quantize(model, data, subset_size=len(pixels), model_type=kind)
    save_openvino(model, about, file)


def _onnx(plain: Path, file: Path, pixels: np.ndarray, about: Description) -> None:
    """Products with weights, by channel; the first and the last of them, and products of
    activations, stay in float32: CIFAR-10's answers were twice as often other ones without that."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[np.ndarray] = iter(np.split(pixels, range(1, len(pixels))))

        def get_next(self) -> Any:
            batch = next(self.batches, None)
            return None if batch is None else {"images": batch}

    prepared = plain.with_name("prepared.onnx")
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    model = onnx.load(prepared)
    weights = {tensor.name for tensor in model.graph.initializer}
    kinds = ["Conv", "Gemm", "MatMul"]
    products = [node for node in model.graph.node if node.op_type in kinds]
    linear = [node.name for node in products if weights & set(node.input)]
    quantize_static(
        prepared,
        file,
        Reader(),
        op_types_to_quantize=kinds,
        nodes_to_quantize=linear[1:-1],
        per_channel=True,
    )
    model = onnx.load(file)
    onnx.helper.set_model_props(model, {KEY: about.to_json()})
    onnx.save(model, file)
    seal(file)


QUANTIZERS: dict[str, Callable[[Path, Path, np.ndarray, Description], None]] = {
    "onnx": _onnx,
    "openvino": _openvino,
}
