"""timm's own tests of a model, and networks of another package, on our models in its registry.

    pip download --no-binary :all: --no-deps timm && tar xf timm-*.tar.gz  # or a clone
    pip install segmentation_models_pytorch
    python -m benchmarks.parity.timm_tests CLONE

CLONE: the sources of the timm that is installed. Seven tests of its tests/test_models.py are called
with our names and with timm's of the same models. A U-Net and a DPT of segmentation_models_pytorch
find discs in noise. Writes benchmarks/results/timm_tests.json, and the tables of docs/backbone.md,
which `--check` compares instead.
"""

import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import vit
from benchmarks.lib.harness import Rows, arguments, document, installed, publish
from benchmarks.lib.pages import ROOT, filled, generate, load, table

PAGE = ROOT / "docs" / "backbone.md"
NAME = "results/timm_tests"
MODELS = {
    "vit_ti16": "vit_tiny_patch16_224",
    "vit_s16": "vit_small_patch16_224",
    "vit_s32": "vit_small_patch32_224",
    "vit_b32": "vit_base_patch32_224",
    "deit_ti16_distilled": "deit_tiny_distilled_patch16_224",
    "dinov2_s14": "vit_small_patch14_dinov2",
    "r_vit_ti16": "vit_tiny_r_s16_p8_224",
    "r50_vit_b16": "vit_base_r50_s16_224",
    "bit_r50x1": "resnetv2_50x1_bit",
    "bit_r101x1": "resnetv2_101x1_bit",
}
"""Our name -> timm's of the same model."""
TESTS: dict[str, tuple[Any, ...]] = {
    "forward": (1,),
    "backward": (2,),
    "default_cfgs": (1, "meta"),
    "default_cfgs_non_std": (1, "meta"),
    "forward_features": (1,),
    "forward_intermediates_features": (1,),
    "forward_intermediates": (1,),
}
"""Name without test_model_ -> arguments after the model: batch size, device of the structure."""
NETWORKS = (("Unet", "bit_r50x1"), ("DPT", "vit_s16"))
SIDE = 64


def tests_of(clone: Path) -> ModuleType:
    """tests/test_models.py. SystemExit if it is of another version than the timm that it tests."""
    import timm

    text = (clone / "timm" / "version.py").read_text(encoding="utf-8")
    [version] = re.findall(r"__version__ = '(.*)'", text)
    if version != timm.__version__:
        raise SystemExit(f"{clone} is timm {version}, but {timm.__version__} is installed")
    spec = importlib.util.spec_from_file_location("timm_tests", clone / "tests" / "test_models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(tests: ModuleType, test: str, model: str) -> str:
    """'passed', 'skipped: WHY' or 'failed: ERROR'."""
    try:
        getattr(tests, f"test_model_{test}")(model, *TESTS[test])
    except pytest.skip.Exception as reason:
        return f"skipped: {reason}"
    except Exception as error:
        line = str(error).partition("\n")[0]
        return f"failed: {type(error).__name__}: {line}"
    return "passed"


def measure(tests: ModuleType, models: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A row for each test and model."""
    for test in TESTS:
        for ours, theirs in models.items():
            row = {"test": test, "model": ours, "timm_model": theirs}
            yield row | {"ours": outcome(tests, test, ours), "timm": outcome(tests, test, theirs)}


def discs(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images `b 3 h w` of noise with a brighter disc, and its mask `b 1 h w`."""
    centres = torch.rand(2, count, 1, 1, generator=draws) * SIDE
    radii = (0.1 + 0.2 * torch.rand(count, 1, 1, generator=draws)) * SIDE
    axis = torch.arange(SIDE) + 0.5
    squares = (axis[:, None] - centres[0]) ** 2 + (axis - centres[1]) ** 2
    mask = (squares < radii**2).float()[:, None]
    return torch.randn(count, 3, SIDE, SIDE, generator=draws) + mask, mask


def segment(model: nn.Module, steps: int) -> dict[str, float]:
    """The loss of the first step, the mean of the last ten, and the intersection over union on new
    images."""
    torch.manual_seed(0)  # for dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    draws, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        images, mask = discs(8, draws)
        loss = F.binary_cross_entropy_with_logits(model(images), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.inference_mode():
        images, mask = discs(64, draws)
        marked, disc = model.eval()(images) > 0, mask > 0
    iou = float((marked & disc).sum() / (marked | disc).sum())
    last = losses[-10:]
    return {"first_loss": losses[0], "last_loss": sum(last) / len(last), "iou": iou}


def networks(network: str, encoder: str, folder: Path) -> dict[str, Any]:
    """Encoder -> the network, with the same weights: those of timm's random model in a file."""
    import segmentation_models_pytorch as smp
    import timm

    torch.manual_seed(0)
    source = timm.create_model(MODELS[encoder], num_classes=0)
    save_file(source.state_dict(), folder / "weights.safetensors")
    options = {"pretrained_cfg_overlay": {"file": str(folder / "weights.safetensors")}}
    options |= {"encoder_weights": True, "classes": 1}
    options |= {"num_classes": 0, "img_size": SIDE} if network == "DPT" else {}
    names = (encoder, MODELS[encoder])
    models = {name: getattr(smp, network)(f"tu-{name}", **options) for name in names}
    for part in ("decoder", "segmentation_head"):
        first, second = (getattr(model, part) for model in models.values())
        second.load_state_dict(first.state_dict())
    return models


def segmentations(steps: int) -> Rows:
    """A row for each network on our encoder, and on timm's."""
    rows = []
    for network, encoder in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            models = networks(network, encoder, Path(folder))
        for name, model in models.items():
            row = {"network": network, "encoder": name, "steps": steps}
            rows.append(row | segment(model, steps))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def passed(rows: Rows, side: str) -> int:
    """Tests that a side, "ours" or "timm", has passed."""
    return sum(row[side] == "passed" for row in rows)


def texts(content: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/backbone.md."""
    rows, versions = content["rows"], content["versions"]
    lines = []
    for test in TESTS:
        ran = [row for row in rows if row["test"] == test]
        others = [row["model"] for row in ran if row["ours"] != "passed"]
        counts = (f"{passed(ran, side)} of {len(ran)}" for side in ("ours", "timm"))
        lines.append((f"test_model_{test}", *counts, ", ".join(others)))
    totals = (f"{passed(rows, side)} of {len(rows)}" for side in ("ours", "timm"))
    lines.append(("all", *totals, ""))
    nets = [
        (
            *(row["network"], row["encoder"], row["steps"]),
            *(f"{row['first_loss']:.3f}", f"{row['last_loss']:.3f}", f"{row['iou']:.2f}"),
        )
        for row in content["segmentations"]
    ]
    heads = ("network", "encoder", "steps", "first loss", "last loss", "IoU, new images")
    smp = f"segmentation_models_pytorch {versions['segmentation_models_pytorch']}"
    smp += f", {SIDE} pixels; last loss: mean of ten steps"
    tests = f"timm {versions['timm']}, torch {versions['torch']}, {content['date']}"
    head = ("test of timm", "our models", "timm's", "ours that fail")
    return {
        "tests": f"{tests}.\n\n{table(head, lines)}",
        "segmentation": f"{smp}.\n\n{table(heads, nets)}",
    }


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Runs all; `--quick` two models, and two steps if the networks are installed."""
    parser = arguments(__doc__)
    parser.add_argument("clone", type=Path, help="timm's sources")
    options = parser.parse_args(words)
    tests = tests_of(options.clone)
    vit.register_with_timm()
    quick = {name: MODELS[name] for name in ("vit_ti16", "bit_r50x1")}
    rows = []
    for row in measure(tests, quick if options.quick else MODELS):
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    has_networks = bool(installed("segmentation_models_pytorch"))
    steps = 2 if options.quick else 40
    networks = segmentations(steps) if has_networks else []
    content = document("timm_tests", rows, quick=options.quick, segmentations=networks)
    content["versions"] |= installed("timm", "segmentation_models_pytorch")
    publish(content, options, NAME)
    return content


def page() -> str:
    """docs/backbone.md with its tables."""
    return filled(PAGE, **texts(load(NAME)))


if __name__ == "__main__":
    whole = "--check" in sys.argv or not main()["quick"]
    raise SystemExit(generate(PAGE, page()) if whole else 0)
