"""Same weights, same logits: every published layout compared with its own library.

    python -m benchmarks.parity.parity [--quick] [--only WORD] [--large]

`vit` loads the file of each model of timm, torchvision and transformers, at full size and with
random values in every parameter. Logits are compared on the same images, at the model's native size
and at another one. Google's .npz files are compared with a NumPy forward pass written from the
papers' equations (tests/extensions/formats/numpy_forward.py). Writes docs/parity.md and
benchmarks/results/parity_<date>.json; the last line of output is the JSON.
"""

import argparse
import json
import platform
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vit
from benchmarks.lib.harness import save
from benchmarks.lib.pages import ROOT, generate, results_path, table
from tests.models.small_models import filled
from vit.extensions.formats.convert import convert
from vit.weights.native import save_native

Size = tuple[int, int]
Answer = Callable[[Tensor], Tensor]
CLASSES = 1000


@dataclass(frozen=True)
class Case:
    """One model of one library."""

    library: str
    model: str
    sizes: tuple[Size, ...]
    """The model's native size, and another one if the library supports it."""


def _cases(library: str, models: str, native: int, *others: Size) -> list[Case]:
    return [Case(library, model, ((native, native), *others)) for model in models.split()]


OTHER, DINO, ODD = (192, 256), (210, 266), (191, 250)
CASES = [
    *_cases("timm", "vit_tiny_patch16_224 vit_small_patch32_224 vit_base_patch16_224", 224, OTHER),
    *_cases("timm", "deit_base_distilled_patch16_224 deit3_base_patch16_224", 224, OTHER),
    *_cases("timm", "vit_small_patch14_dinov2 vit_small_patch14_reg4_dinov2", 518, DINO),
    *_cases("timm", "vit_tiny_r_s16_p8_224 vit_small_r26_s32_224", 224, OTHER),
    *_cases("timm", "vit_base_r50_s16_224", 224, OTHER),
    *_cases("timm", "resnetv2_50x1_bit resnetv2_101x1_bit", 224, ODD),
    *_cases("torchvision", "vit_b_16 vit_b_32", 224),
    *_cases("transformers", "ViTForImageClassification", 224, OTHER),
    *_cases("transformers", "DeiTForImageClassificationWithTeacher", 224, OTHER),
    *_cases("transformers", "Dinov2ForImageClassification", 224, DINO),
    *_cases("transformers", "Dinov2WithRegistersForImageClassification", 224, DINO),
    *_cases("transformers", "BitForImageClassification", 224, ODD),
    *_cases("NumPy (.npz)", "vit_ti16 vit_b16 r_vit_ti16 r26_vit_s32", 224, OTHER),
    *_cases("NumPy (.npz)", "bit_r50x1", 224, ODD),
]
LARGE = [
    *_cases("timm", "vit_large_patch16_224", 224, OTHER),
    *_cases("torchvision", "vit_l_16 vit_h_14", 224),
    *_cases("NumPy (.npz)", "r50_vit_l32", 224, OTHER),
]
QUICK = ("vit_tiny_patch16_224", "vit_ti16")


def timm_peer(case: Case, folder: Path) -> tuple[nn.Module, Answer, Path]:
    """timm's model, and its file."""
    import timm

    arguments = {} if "resnetv2" in case.model else {"dynamic_img_size": True}
    peer = filled(timm.create_model(case.model, num_classes=CLASSES, **arguments))
    save_file(peer.state_dict(), folder / "model.safetensors", {"format": "pt"})
    description = {"pretrained_cfg": {"input_size": [3, *case.sizes[0]]}}
    (folder / "config.json").write_text(json.dumps(description))
    return peer, peer, folder


def torchvision_peer(case: Case, folder: Path) -> tuple[nn.Module, Answer, Path]:
    """torchvision's model, and its file."""
    import torchvision.models

    peer = filled(torchvision.models.get_model(case.model, weights=None))
    torch.save(peer.state_dict(), folder / "model.pth")
    return peer, peer, folder / "model.pth"


def transformers_peer(case: Case, folder: Path) -> tuple[nn.Module, Answer, Path]:
    """transformers' model, and the directory it saves."""
    import transformers

    name = case.model.split("For")[0]
    options: dict[str, Any] = {"num_labels": CLASSES}
    if "Bit" not in name:
        options["image_size"] = case.sizes[0][0]
    if "Dinov2" in name:
        options |= {"patch_size": 14, "hidden_size": 384, "num_attention_heads": 6}
    config = getattr(transformers, f"{name}Config")(**options)
    peer = filled(getattr(transformers, case.model)(config))
    peer.save_pretrained(folder)  # pyright: ignore

    def answer(images: Tensor) -> Tensor:
        flag = {"interpolate_pos_encoding": True} if name in ("ViT", "DeiT") else {}
        return peer(images, **flag).logits

    return peer, answer, folder


def numpy_peer(case: Case, folder: Path) -> tuple[None, Answer, Path]:
    """The papers' equations on a .npz file in Google's layout."""
    import numpy as np

    from tests.extensions.formats import numpy_forward

    model = filled(vit.create_model(case.model))
    save_native(folder / "native", model, classes=None, preprocess=None, extra={})
    convert(folder / "native", folder / "model.npz", "google")
    weights = dict(np.load(folder / "model.npz", allow_pickle=False))
    grid = getattr(model.config, "grid", (0, 0))

    def answer(images: Tensor) -> Tensor:
        pixels = images.double().permute(0, 2, 3, 1).numpy()
        if "resnet/head/conv2d/kernel" in weights:
            return torch.from_numpy(numpy_forward.bit(pixels, weights))
        return torch.from_numpy(numpy_forward.vit(pixels, weights, grid))

    return None, answer, folder / "model.npz"


PEERS = {
    "timm": timm_peer,
    "torchvision": torchvision_peer,
    "transformers": transformers_peer,
    "NumPy (.npz)": numpy_peer,
}


PAGE = ROOT / "docs" / "parity.md"


@torch.no_grad()
def measure(case: Case) -> list[dict[str, Any]]:
    """Differences at each size; in float32 against NumPy's double precision for .npz."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        peer, answer, path = PEERS[case.library](case, Path(name))
        ours = vit.create_model(pretrained=path, report=lambda _: None).eval()
        for size in case.sizes:
            images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
            row: dict[str, Any] = {
                "library": case.library,
                "model": case.model,
                "image_size": list(size),
            }
            for dtype in (torch.float32, torch.float64):
                if peer is not None:
                    peer.to(dtype)
                theirs = answer(images.to(dtype)).double()
                mine = ours.to(dtype)(images.to(dtype)).double()
                difference = (mine - theirs).abs().max().item()
                key = str(dtype).removeprefix("torch.")
                row[f"{key}_absolute"] = difference
                row[f"{key}_relative"] = difference / theirs.abs().max().item()
            ours.float()
            rows.append(row)
            print(
                f"{case.library:12} {case.model:45} {size[0]}x{size[1]:<4} "
                f"float32 {row['float32_relative']:.1e}  float64 {row['float64_relative']:.1e}",
                flush=True,
            )
    return rows


def summary(document: dict[str, Any]) -> str:
    """The result in words, at the top of the page."""
    rows = document["rows"]
    single, double = (
        max(row[f"{kind}_relative"] for row in rows) for kind in ("float32", "float64")
    )
    same = sum(row["float32_absolute"] == 0 for row in rows)
    text = (
        f"In float32, {same} of {len(rows)} comparisons agree bit for bit; the largest difference "
        f"is {single:.0e} of the largest logit, which is rounding. In float64 it is {double:.0e}."
    )
    return textwrap.fill(text, 110, break_on_hyphens=False)


def text(document: dict[str, Any]) -> str:
    """The generated table of docs/parity.md."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    lines = [
        (
            row["library"],
            row["model"],
            "x".join(map(str, row["image_size"])),
            f"{row['float32_absolute']:.1e}",
            f"{row['float32_relative']:.1e}",
            f"{row['float64_relative']:.1e}",
        )
        for row in document["rows"]
    ]
    exact = ("float32, absolute", "float32, relative", "float64, relative")
    head = ("library", "model", "image", *exact)
    made = f"Measured by `benchmarks/parity/parity.py` on {document['date']}, with {versions}."
    return f"{made}\n\n{table(head, lines)}"


def main() -> None:
    """Measures, writes both files, and prints the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small models, no files written")
    parser.add_argument("--only", default="", help="models whose name or library contains this")
    parser.add_argument(
        "--large", action="store_true", help="also models with 300 million parameters and more"
    )
    args = parser.parse_args()
    cases = [case for case in CASES + (LARGE if args.large else []) if args.only in str(case)]
    if args.quick:
        cases = [case for case in cases if case.model in QUICK]
    import numpy
    import timm
    import torchvision
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    packages = (torch, timm, torchvision, transformers, numpy)
    document = {
        "what": "parity",
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.platform(),
        "versions": {module.__name__: module.__version__ for module in packages},
        "rows": [row for case in cases for row in measure(case)],
    }
    if not (args.quick or args.only):
        save(document, results_path(f"results/parity_{document['date']}"))
        generate(PAGE, filled(PAGE, summary=summary(document), table=text(document)))
    print(json.dumps(document))


if __name__ == "__main__":
    main()
