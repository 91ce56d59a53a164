"""Models that another runtime computes: exported files, and OpenVINO for a model in memory.

Shapes: b batch, c channels, h w pixels.
"""

import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.errors import UserError, needed
from vit.extensions.licences.rows import say_once
from vit.extensions.serving.graph import Graph
from vit.hardware import available_cores, cpu_features
from vit.inference.classifier import Classifier
from vit.inference.runtimes import Precision
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.weights.heads import unanswerable
from vit.weights.sealed import fingerprint

if TYPE_CHECKING:
    import numpy as np  # which a model in PyTorch does without

KEY = "vit"
"""Of the description in a file's metadata."""
_SEAL = re.compile(rb"digest(?:\"|&quot;): (?:\"|&quot;)([0-9a-f]{64})")
SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "pt2": ".pt2"}
"""Of each format's main file."""
HINTS = {"float32": "f32", "bfloat16": "bf16"}
"""Of OpenVINO, for the precision of products."""
Arrays = dict[str, "np.ndarray"]
Run = Callable[["np.ndarray"], Arrays]
"""Pixels `b h w c`, uint8 or float32 as for Graph -> the named tensors."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The metadata of an exported model."""

    outputs: list[str]
    """Names of the tensors, as in Graph."""
    classes: list[str] | None
    """In the order of the logits."""
    preprocess: Preprocess
    """Without the normalisation, which the graph does itself, this is left to the caller."""
    multilabel: bool = False
    thresholds: list[float] | None = None
    """Of the probabilities."""
    temperature: float = 1.0
    """By which the logits are divided for the probabilities."""
    tree: bool = False
    """The classes are paths of a LabelTree."""
    precision: str = "float32"
    """Of the products: float32, bfloat16 where the CPU has units for it, or int8."""
    source: str | None = None
    sha256: str | None = None
    """Of the tensors that were exported."""
    licences: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """Of the weights, and of all that they were made of."""
    version: str | None = None
    """Of this package."""
    digest: str = field(default="0" * 64, compare=False)
    """SHA-256 of the file, with zeros in this place, and of the weights beside it."""

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return json.dumps({**asdict(self), "preprocess": self.preprocess.to_dict()})

    @classmethod
    def from_json(cls, text: str) -> "Description":
        """Description from the text of `to_json`."""
        values = json.loads(text)
        return cls(**{**values, "preprocess": Preprocess.from_dict(values["preprocess"])})


@dataclass(frozen=True)
class Engine:
    """A model in a runtime on the CPU."""

    name: str
    """Runtime, its version, and the precision."""
    run: "Run"
    """On all cores."""
    beside: "Callable[[int], Run]"
    """Number of threads -> `run` for calls from so many at once, which share the cores."""
    description: Description
    precision: str
    identity: str
    """What tells its weights from others: a digest of its files, or of the model in memory."""

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        """The named tensors, for images `b c h w` that the preprocessing has cut."""
        outputs = self.run(images.permute(0, 2, 3, 1).contiguous().numpy())
        return {name: torch.from_numpy(array) for name, array in outputs.items()}

    def check_device(self, device: str | torch.device) -> None:
        """UserError for another device than the CPU."""
        if torch.device(device).type != "cpu":
            raise UserError(f"{self.name} computes on the CPU, not on {device}")


@dataclass(eq=False, repr=False)
class EngineClassifier(Classifier):
    """A classifier whose logits an engine computes on the CPU; its `model` has no weights."""

    _: KW_ONLY
    engine: Engine

    def __post_init__(self) -> None:
        super().__post_init__()
        self.runtime = self.engine.name

    def outputs(self, pixels: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        named = self.engine.tensors(pixels)
        return named["logits"], named["features"] if features else None

    def to(self, device: str | torch.device) -> "EngineClassifier":
        """UserError for another device than the CPU."""
        self.engine.check_device(device)
        return self

    def beside(self, threads: int) -> "EngineClassifier":
        """The same for calls from so many threads at once: an image takes longer, all less."""
        return replace(self, engine=replace(self.engine, run=self.engine.beside(threads)))


def open_engine(
    path: str | Path, precision: Precision = "float32", engine: str = "torch"
) -> Engine:
    """The model in an .onnx or .xml file that `vit export` wrote; torch leaves it to its runtime.

    UserError for a file that is not as it was written, without the runtime, and for an engine or a
    precision that the runtime or the CPU lacks.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        if precision != "float32" or engine == "openvino":
            raise UserError(
                f"ONNX Runtime computes in the precision of {path}; leave --engine and --precision "
                "out, or export to OpenVINO (.xml)"
            )
        return _said(_onnx(path))
    if suffix == ".xml":
        if not (weights := path.with_suffix(".bin")).is_file():
            raise UserError(f"{path} needs the file of its weights beside it: {weights.name}")
        core = openvino_core()
        check_seal(path)
        model = core.read_model(path)
        about = Description.from_json(model.get_rt_info([KEY]).value)
        return _said(_compiled(model, about, precision, about.digest))
    raise UserError(
        f"{path} is not read here: a .pt2 file can execute code; load it with torch.export.load if "
        "you trust it, or export to .onnx or .xml"
    )


def _said(engine: Engine) -> Engine:
    """The engine, once the licences of its weights are printed."""
    say_once(engine.description.licences)
    return engine


def open_classifier(path: Path, precision: Precision, engine: str) -> Classifier:
    """Row of the table `engines`. UserError as of `open_engine`, and for an encoder."""
    runtime = open_engine(path, precision, engine)
    about = runtime.description
    if about.classes is None:
        commands = "`vit knn`, `vit probe` and `vit fewshot` take it"
        raise UserError(f"{path} is an encoder without classes: {commands}")
    if why := unanswerable(len(about.classes), {"multilabel": about.multilabel}):
        raise UserError(f"{path} {why}")
    return EngineClassifier(
        nn.Identity(),
        about.classes,
        about.preprocess,
        multilabel=about.multilabel,
        thresholds=about.thresholds or [],
        temperature=about.temperature,
        tree=about.tree,
        engine=runtime,
    )


def classifier_in_openvino(classifier: Classifier, precision: Precision) -> EngineClassifier:
    """Row of the table `runtimes`. UserError as for `open_engine`."""
    model: Any = classifier.model
    engine = in_openvino(model, classifier.preprocess, precision)
    values = {each.name: getattr(classifier, each.name) for each in fields(classifier)}
    return EngineClassifier(**{**values, "model": nn.Identity()}, engine=engine)


def in_openvino(model: Model, preprocess: Preprocess, precision: Precision = "float32") -> Engine:
    """A model in memory, computed by OpenVINO. UserError as for `open_engine`."""
    graph = Graph(model, preprocess)
    about = Description(outputs=graph.names, classes=None, preprocess=preprocess)
    identity = f"{fingerprint(graph.state_dict())} {json.dumps(graph.model.config.to_dict())}"
    return _compiled(to_openvino(graph), about, precision, identity)


def openvino_part(library: str) -> Any:
    """OpenVINO or NNCF, which would report every use to a server. UserError as of `needed`."""
    sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    return needed(library, "openvino")


@cache
def openvino_core() -> Any:
    """OpenVINO's Core, one for as long as the process lasts.

    Each Core sets a stack for signals and restores the one of before when it ends. Of two that end
    in the order in which they began, the second restores that of the first, which is gone: the
    next signal, such as Ctrl-C or the end of a process of a loader, would end this process.

    Its first look at an array waits for ever if two threads have it at once: each has one of the
    interpreter's lock and the lock of what is set up there. It is done here.
    """
    import numpy as np

    openvino = openvino_part("openvino")
    openvino.Tensor(np.zeros(1)).data.copy()
    core = openvino.Core()
    core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")  # starts the part that sets the stack
    return core


def computes_bfloat16() -> bool:
    """True if the CPU has units for bfloat16, by OpenVINO."""
    return "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def to_openvino(graph: Graph) -> Any:
    """OpenVINO's model of a graph, with names and shapes."""
    openvino = openvino_part("openvino")
    model = openvino.convert_model(exported(graph))
    model.inputs[0].get_tensor().set_names({"images"})
    for output, name in zip(model.outputs, graph.names, strict=True):
        output.get_tensor().set_names({name})
    model.reshape({"images": openvino.PartialShape([-1, *graph.example(1).shape[1:]])})
    return model


def exported(graph: Graph) -> torch.export.ExportedProgram:
    """The graph as torch.export sees it, for batches of any size."""
    batch = torch.export.Dim("batch", min=1, max=2**20)
    with torch.no_grad():
        # Two images: a batch of one would be taken for the only size.
        return torch.export.export(
            graph.eval(), (graph.example(2),), dynamic_shapes={"images": {0: batch}}
        )


def _compiled(model: Any, about: Description, precision: Precision, identity: str) -> Engine:
    """OpenVINO's model on the CPU; its own choice of precision would be bfloat16 where it can."""
    hint = HINTS.get(precision)
    if hint is None:
        raise UserError(f"OpenVINO computes in float32 or bfloat16, not in {precision}")
    openvino, core = openvino_part("openvino"), openvino_core()
    if precision == "bfloat16" and not computes_bfloat16():
        raise UserError("the CPU has no units for bfloat16 (AVX512_BF16 or AMX); use float32")
    if about.precision == "bfloat16" and computes_bfloat16():  # other CPUs are slower in it
        precision, hint = "bfloat16", HINTS["bfloat16"]
    shown = about.precision if about.precision == "int8" else precision

    # On CPUs with AMX, int8 models for any size of batch end the process (OpenVINO issue 37577).
    sized = shown == "int8" and "amx" in cpu_features()

    @cache
    def program(batch: int | None, streams: int) -> Any:
        """Compiled for batches of this size, or of any, of which so many are computed at once."""
        shaped = model.clone()
        if batch is not None:
            shaped.reshape([batch, *model.input().partial_shape[1:]])
        settings = {"INFERENCE_PRECISION_HINT": hint, "NUM_STREAMS": streams}
        return core.compile_model(shaped, "CPU", settings)

    idle, lock = defaultdict[Any, list[Any]](list), Lock()

    def run(streams: int, images: "np.ndarray") -> Arrays:
        kind = len(images) if sized else None, streams
        with lock:
            request = idle[kind].pop() if idle[kind] else program(*kind).create_infer_request()
        answers = request.infer({"images": images})
        named = {output: answers[output].copy() for output in about.outputs}
        idle[kind].append(request)
        return named

    name = f"OpenVINO {openvino.get_version().split('-')[0]}, {shown}"
    return Engine(name, partial(run, 1), partial(partial, run), about, shown, identity)


def _onnx(path: Path) -> Engine:
    onnxruntime = needed("onnxruntime", "onnx")
    check_seal(path)

    @cache
    def session(cores: int) -> Any:
        """Session whose calls use so many cores; 0 is all."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, cores
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(cores: int, images: "np.ndarray") -> Arrays:
        answers: Any = session(cores).run(about.outputs, {"images": images})
        return dict(zip(about.outputs, answers, strict=True))

    def beside(threads: int) -> Run:
        session.cache_clear()  # each holds the weights
        session(cores := max(available_cores() // threads, 1))
        return partial(run, cores)

    about = Description.from_json(session(0).get_modelmeta().custom_metadata_map[KEY])
    name = f"ONNX Runtime {onnxruntime.__version__}, {about.precision}"
    return Engine(name, partial(run, 0), beside, about, about.precision, about.digest)


def seal(path: Path) -> None:
    """Writes its digest into an exported file."""
    place, _, digest = _sealed(path)
    with path.open("rb+") as file:
        file.seek(place)
        file.write(digest.encode())


def check_seal(path: Path) -> None:
    """UserError for a file that is not as `seal` left it, or other weights beside it."""
    _, recorded, digest = _sealed(path)
    if recorded != digest:
        raise UserError(
            f"{path} was not written by `vit export`, or has changed since (damage, another tool, "
            "or other weights beside it): export the model again"
        )


def _sealed(path: Path) -> tuple[int, str, str]:
    """Place of the digest in a file; the one that is there, "" in a foreign file; the right one."""
    content = path.read_bytes()
    match = _SEAL.match(content, content.rfind(b"digest"))
    start, end = match.span(1) if match else (0, 0)
    whole = hashlib.sha256(memoryview(content)[:start])
    whole.update(b"0" * (end - start))
    whole.update(memoryview(content)[end:])
    is_onnx = path.suffix.lower() == ".onnx"  # with a file of weights above 2 GB
    weights = path.with_name(f"{path.name}.data") if is_onnx else path.with_suffix(".bin")
    if weights.is_file():
        with weights.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return start, content[start:end].decode(), whole.hexdigest()
