"""Whether exported files answer as PyTorch does, over the kinds of models.

    python -m benchmarks.parity.exports

Each model, with random values in every parameter, is exported to ONNX, OpenVINO and torch.export
and compared on drawn pictures; class names and preprocessing are read back from the file. Writes
benchmarks/results/exports.json and the table in docs/export.md.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vit
from benchmarks.lib.harness import document, installed, results_path, save
from benchmarks.lib.pages import ROOT, filled, generate, load, table
from vit.extensions.formats.preprocessing import unrecorded
from vit.extensions.serving.engines import KEY, SUFFIXES, Description, open_engine
from vit.extensions.serving.proof import TOLERANCE
from vit.extensions.serving.source import described
from vit.models.resnet import StdConv2d

CLASSES = 10
DINO = {"patch_size": 14, "layer_scale": 1.0, "activation": "gelu", "pos_resize": "bicubic"}
ROPE = {"pos_embed": "none", "rotary": {}, "layer_scale": 1.0, "num_registers": 4}
MAP = {"pool": "map", "class_token": False, "pos_embed_class_slot": False}
GAP = {"pool": "gap", "class_token": False, "norm_after_pool": True}
# Kind, architecture, changes of it; beside fields of the configuration `several` labels an image.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ViT", "vit_ti16", {}),
    ("ViT", "vit_s16", {}),
    ("ViT", "vit_b32", {}),
    ("ViT", "vit_b16", {}),
    ("ViT, 208x304 pixels", "vit_ti16", {"image_size": (208, 304)}),
    ("ViT, tanh before the head", "vit_ti16", {"representation_size": 192}),
    ("ViT, mean of patches", "vit_s32", GAP),
    ("ViT, attention pooling", "vit_ti16", MAP),
    ("ViT, sine and cosine positions", "vit_s16", {**GAP, "pos_embed": "sincos2d"}),
    ("DeiT, distilled", "vit_ti16", {"distillation_token": True, "activation": "gelu"}),
    ("DeiT-III", "vit_s16", {"layer_scale": 1e-4, "pos_embed_class_slot": False}),
    ("DINOv2", "vit_s16", {**DINO, "pool": "cls_gap", "image_size": (210, 266)}),
    ("DINOv2, registers", "vit_s16", {**DINO, "num_registers": 4, "pos_embed_class_slot": False}),
    ("DINOv2, no head", "vit_s16", {**DINO, "num_classes": 0}),
    ("DINOv3", "vit_s16", ROPE),
    ("DINOv3, gated MLP, no head", "vit_s16", {**ROPE, "activation": "swiglu", "num_classes": 0}),
    ("hybrid", "r_vit_ti16", {}),
    ("hybrid", "r26_vit_s32", {}),
    ("hybrid, 240x176 pixels", "r50_vit_b16", {"image_size": (240, 176)}),
    ("BiT", "bit_r50x1", {}),
    ("BiT, 191x250 pixels, several labels", "bit_r50x1", {"image_size": (191, 250), "several": 1}),
    ("ViT, several labels", "vit_ti16", {"several": 1}),
    ("ViT, 1 channel", "vit_ti16", {"in_channels": 1}),
    ("BiT, 7 channels, no head", "bit_r50x1", {"in_channels": 7, "num_classes": 0}),
]


def models() -> Iterator[tuple[str, Any]]:
    """Kind and classifier, or model without a head."""
    for seed, (kind, name, changes) in enumerate(CASES):
        options = {"num_classes": CLASSES, **changes}
        several = bool(options.pop("several", 0))
        torch.manual_seed(seed)
        model: Any = vit.create_model(name, **options)
        randomise(model)
        preprocess = unrecorded(model.config)
        if model.config.num_classes:
            names = [f"class {i}" for i in range(CLASSES)]
            yield f"{kind}, {name}", vit.Classifier(model, names, preprocess, multilabel=several)
        else:
            yield f"{kind}, {name}", model


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Values in every parameter that was zero or one, so that none is without effect."""
    convolutions = {id(m.weight) for m in model.modules() if isinstance(m, StdConv2d)}
    for parameter in model.parameters():
        if id(parameter) not in convolutions:
            parameter += 0.02 * torch.randn_like(parameter)


def measure(kind: str, model: Any) -> Iterator[dict[str, Any]]:
    """A row for each format."""
    with tempfile.TemporaryDirectory() as folder:
        for format, suffix in SUFFIXES.items():
            began = time.monotonic()
            row: dict[str, Any] = {"model": kind, "format": format}
            done = vit.export(model, Path(folder, "model"), format=format)  # pyright: ignore
            _, wanted = described(model)
            read = read_back(Path(folder, f"model{suffix}"))
            row |= {"difference": done.proof.difference, "equal": done.proof.agreeing}
            row |= {"pictures": done.proof.count, "read_back": read == wanted}
            row |= {"megabytes": round(sum(f.stat().st_size for f in done.files) / 1e6, 1)}
            yield row | {"seconds": round(time.monotonic() - began, 1)}


def read_back(path: Path) -> Description:
    """The description in a file."""
    if path.suffix != ".pt2":
        return open_engine(path).description
    extra = {f"{KEY}.json": ""}
    torch.export.load(path, extra_files=extra)
    return Description.from_json(extra[f"{KEY}.json"])


def text(content: dict[str, Any]) -> str:
    """The table of docs/export.md."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    for row in content["rows"]:
        by_model.setdefault(row["model"], []).append(row)
    lines = [
        (name, *(f"{row['difference']:.1e}, {row['equal']}/{row['pictures']}" for row in rows))
        for name, rows in by_model.items()
    ]
    names = sum(row["read_back"] for row in content["rows"])
    names_shown = ("torch", "onnx", "onnxruntime", "openvino")
    versions = ", ".join(f"{name} {content['versions'][name]}" for name in names_shown)
    return (
        f"{len(by_model)} models, random values in every parameter, {content['date']}, "
        f"{versions}. "
        "Largest difference of any output in float32 over that output's largest value, and equal "
        f"answers; class names and preprocessing were read back from {names} of "
        f"{len(content['rows'])} files.\n\n" + table(("model", *SUFFIXES), lines)
    )


def main() -> int:
    """Measures, writes the results and the page."""
    page = ROOT / "docs" / "export.md"
    if "--check" not in sys.argv:
        rows = []
        for kind, model in models():
            for row in measure(kind, model):
                rows.append(row)
                print(json.dumps(row), flush=True)
        content = document("exports", rows, tolerance=TOLERANCE)
        content["versions"] |= installed("onnx", "onnxruntime", "openvino")
        save(content, results_path("results/exports"))
    return generate(page, filled(page, models=text(load("results/exports"))))


if __name__ == "__main__":
    raise SystemExit(main())
