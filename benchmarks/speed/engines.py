"""Time of a batch by model, engine and precision, on a CPU: PyTorch, timm, ONNX Runtime, OpenVINO.

    python -m benchmarks.speed.engines                           Ti, S, B, L, BiT R50x1, DINOv2-S
    python -m benchmarks.speed.engines --models vit_s16          its rows again; the others stay
    python -m benchmarks.speed.engines --threads 2               wall-clock time
    python -m benchmarks.speed.engines --quick                   takes a minute; nothing is written

uint8 pixels go in and logits come out: normalisation counts everywhere. timm's model has our
weights, which are random, in its default setting, the fastest in benchmarks/speed/models.py; other
runtimes get the files of `vit export`. All arms alternate; ratios are of the rounds. int8 is
calibrated on drawn pictures: its time is that of a calibrated model, its difference is not.

Rounds are reduced to what --budget allows for a model and batch size; below three it is "not run",
as is an arm without its runtime. Each model is saved when it is done.
"""

import argparse
import copy
import gc
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import vit
from benchmarks.lib.harness import (
    Rows,
    arguments,
    document,
    has_bfloat16,
    installed,
    keep_memory,
    publish,
    ratio,
    results_name,
    save,
    span,
    take_turns,
    target,
)
from benchmarks.lib.model_peers import BUILDERS, CIFAR, Setting, configuration, fill
from vit.extensions.formats.preprocessing import unrecorded
from vit.extensions.serving.engines import open_engine, openvino_core
from vit.extensions.serving.proof import drawn
from vit.extensions.serving.quantize import QUANTIZERS
from vit.extensions.serving.write import quiet
from vit.inference.classifier import Classifier

ALL = ["vit_ti16", "vit_s16", "vit_b16", "vit_l16", "bit_r50x1", "dinov2_s14"]
BATCHES = [1, 16]
EAGER = ("PyTorch", "timm")
INSTRUCTIONS = ("avx2", "avx512_f", "avx512_vnni", "avx_vnni", "avx512_bf16")
INSTRUCTIONS += ("amx_tile", "amx_int8", "amx_bf16")
# Minimum seconds per turn, and rounds for a median.
SHORTEST, FEWEST = 0.3, 3
Arm = tuple[str, str]
"""Engine and precision."""
Run = Callable[[np.ndarray], np.ndarray]
"""uint8 `b h w c` -> logits `b k`."""


class Network:
    """A model with random weights, and its exported files."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        self.config = configuration(name)
        self.preprocess = unrecorded(self.config)
        self.model = fill(BUILDERS["vit"](self.config, Setting("vit", ""))).eval()
        self.folder, self.threads = folder, threads
        self.drawn = drawn(self.preprocess)

    def arms(self) -> dict[Arm, Callable[[], Run]]:
        """Functions that build every arm."""
        low = torch.bfloat16
        return {
            ("PyTorch", "float32"): lambda: self.in_torch(self.model),
            ("PyTorch", "bfloat16"): lambda: self.in_torch(copy.deepcopy(self.model).to(low)),
            ("PyTorch, compiled", "float32"): lambda: self.in_torch(compiled(self.model)),
            ("timm", "float32"): lambda: self.in_torch(self.timm()),
            ("timm", "bfloat16"): lambda: self.in_torch(self.timm().to(low)),
            ("ONNX Runtime", "float32"): lambda: self.session(self.exported(".onnx")),
            ("ONNX Runtime", "int8"): lambda: self.session(self.int8("onnx", ".onnx")),
            ("OpenVINO", "float32"): lambda: self.program(self.exported(".xml"), "f32"),
            ("OpenVINO", "bfloat16"): lambda: self.program(self.exported(".xml"), "bf16"),
            ("OpenVINO", "int8"): lambda: self.program(self.int8("openvino", ".xml"), "f32"),
        }

    def in_torch(self, model: nn.Module) -> Run:
        """As a Classifier computes."""
        classifier = Classifier(model, [], self.preprocess)
        return lambda images: classifier.outputs(torch.from_numpy(images).permute(0, 3, 1, 2))[
            0
        ].numpy()

    def timm(self) -> nn.Module:
        """timm's model with our weights."""
        return fill(BUILDERS["timm"](self.config, Setting("timm", ""))).eval()

    def exported(self, suffix: str) -> Path:
        """The file of `vit export`."""
        file = self.folder / f"model{suffix}"
        if not file.exists():
            classes = [str(i) for i in range(self.config.num_classes)]
            classifier = Classifier(self.model, classes, self.preprocess)
            vit.export(classifier, file, check=list(self.drawn[:1]))
        return file

    def int8(self, kind: str, suffix: str) -> Path:
        """The file of `vit export --int8`."""
        plain, file = self.exported(suffix), self.folder / f"int8{suffix}"
        about = replace(open_engine(plain).description, precision="int8")
        with quiet():
            QUANTIZERS[kind](plain, file, self.drawn, about)
        return file

    def session(self, file: Path) -> Run:
        """ONNX Runtime's."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda images: np.asarray(session.run(["logits"], {"images": images})[0])

    def program(self, file: Path, precision: str) -> Run:
        """OpenVINO's."""
        hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": self.threads}
        program = openvino_core().compile_model(file, "CPU", hints)
        return lambda images: program({"images": images})["logits"]


def compiled(model: nn.Module) -> nn.Module:
    """A graph for each batch size."""
    compile_: Any = torch.compile
    return compile_(model, dynamic=False, isolate_recompiles=True)


def built(arms: Mapping[Arm, Callable[[], Run]]) -> dict[Arm, Run | str]:
    """Every arm, or why it cannot run."""
    result: dict[Arm, Run | str] = {}
    for arm, build in arms.items():
        if arm[1] == "bfloat16" and not has_bfloat16():
            result[arm] = "the CPU has no units for bfloat16"
            continue
        try:
            result[arm] = build()
        except Exception as error:  # one arm must not cost an hour of the others
            result[arm] = str(error)[:200]
        print(f"{', '.join(arm)}: {result[arm] if isinstance(result[arm], str) else 'built'}")
    return result


def measure(
    name: str, batch: int, arms: Mapping[Arm, Run | str], options: argparse.Namespace
) -> Rows:
    """One row per arm."""
    runs = {arm: value for arm, value in arms.items() if not isinstance(value, str)}
    facts = {"model": name, "batch_size": batch}
    size = configuration(name).size
    images = np.random.default_rng(0).integers(0, 256, (batch, *size, 3), dtype=np.uint8)
    base = runs["PyTorch", "float32"]
    exact = base(images)
    start = time.perf_counter()
    base(images)
    seconds = (time.perf_counter() - start) * len(runs)
    rounds = min(options.rounds, int(options.budget / seconds) - 2)  # two turns warm up
    if rounds < min(FEWEST, options.rounds):
        reason = f"{FEWEST} rounds take about {(FEWEST + 2) * seconds:.0f} s"
        return [{**facts, "engine": e, "precision": p, "not_run": reason} for e, p in arms]
    calls = {arm: lambda run=run: run(images) for arm, run in runs.items()}
    clock = "cpu" if options.threads == 1 else "wall"
    times = take_turns(f"{name}, {batch}", calls, rounds, shortest=SHORTEST, clock=clock)
    rows: Rows = []
    for arm, value in arms.items():
        row = {**facts, "engine": arm[0], "precision": arm[1]}
        if isinstance(value, str):
            rows.append({**row, "not_run": value})
            continue
        row |= {"seconds": times[arm].median, "rounds": rounds}
        for precision in ("float32", "bfloat16"):
            eager = [times[e, precision] for e in EAGER if (e, precision) in times]
            best = min(eager, key=lambda t: t.median, default=None)
            row[f"over_{precision}"] = best and ratio(times[arm].ratios(best))
        row["difference"] = float(np.abs(calls[arm]() - exact).max() / np.abs(exact).max())
        rows.append(row)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    text = f"{row['model']:10} {row['batch_size']:2} {row['engine']:17} {row['precision']:8}"
    if "not_run" in row:
        return f"{text} not run: {row['not_run']}"
    ms, over = 1e3 * row["seconds"], span(row["over_float32"])
    return f"{text} {ms:9.1f} ms  x{over}  difference {row['difference']:.1e}"


def earlier(path: Path, content: dict[str, Any]) -> Rows:
    """The rows that a processor of this name has measured with the same versions."""
    old = json.loads(path.read_text()) if path.is_file() else {}
    same = all(old.get(key) == content[key] for key in ("instructions", "versions", "threads"))
    return old["rows"] if same else []


def main() -> None:
    """Measures, prints a table and the JSON, writes the file."""
    parser = arguments(__doc__, rounds=7)
    add = parser.add_argument
    add("--models", nargs="+", default=ALL, metavar="NAME")
    add("--batch-sizes", nargs="+", type=int, default=BATCHES, metavar="N")
    add("--threads", type=int, default=1, help="default 1, by CPU time; more by wall-clock time")
    add("--budget", type=float, default=1200.0, help="seconds of a model and batch; default 1200")
    options = parser.parse_args()
    if options.quick:
        options.models, options.batch_sizes, options.rounds = [CIFAR], [1], 2
    torch.set_num_threads(options.threads)
    keep_memory()
    units = torch.cpu.get_capabilities()
    content = document(
        "engines",
        [],
        threads=options.threads,
        instructions=[name for name in INSTRUCTIONS if units.get(name)],
    )
    content["versions"] |= installed("onnxruntime", "openvino", "nncf", "timm")
    standard = results_name("engines") if options.threads == 1 else None
    path = target(options, standard)
    rows = earlier(path, content) if path else []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            arms = built(Network(name, Path(folder), options.threads).arms())
            for batch in options.batch_sizes:
                new = measure(name, batch, arms, options)
                print("\n".join(map(line, new)), flush=True)
                rows = [r for r in rows if (r["model"], r["batch_size"]) != (name, batch)] + new
            content["rows"] = rows
            save(content, path)
        del arms
        gc.collect()
    publish(content, options, standard)


if __name__ == "__main__":
    main()
