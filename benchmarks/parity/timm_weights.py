"""How many of the weights that timm lists load equal: every name with its tag, with random values.

    python -m benchmarks.parity.timm_weights

Each model is built by timm with one layer at a small size, keeps the tag, outputs and preprocessing
of the weights, and is saved as timm saves it. Weights that timm notes as natively quick are
compared with its `_clip_quickgelu_` entry. Writes benchmarks/results/timm_weights.json and a part
of docs/families.md; the last line of output counts the outcomes.
"""

import gc
import json
import re
import tempfile
import time
from collections import Counter, defaultdict
from typing import Any

import torch
from torch import nn

import vit
from benchmarks.lib.family_cases import timm_arguments
from benchmarks.lib.pages import filled, generate, results_path, table
from benchmarks.parity.families import EQUAL, PAGE, NoInit, scatter
from vit.errors import UserError

MODULES = "vision_transformer eva deit beit naflexvit hieradet_sam2".split()
"""timm's modules of ViTs, hybrids and ResNets apart."""
FAMILIES = {
    "CLIP": r"^vit_.*_clip_",
    "Perception Encoder": r"^vit_pe_",
    "EVA": r"^eva",
    "DINOv3, LingBot-Vision": r"dinov3|lingbot",
    "other rotary positions": r"_rope_",
    "SigLIP": r"siglip",
    "DINOv2": r"dinov2|dinotxt|tipsv2|franca",
    "DeiT": r"^deit",
    "BEiT": r"^beit",
    "NaFlex": r"^naflex",
    "Hiera": r"^hiera|sam2_hiera",
}
"""Family -> pattern of its names; the first that matches counts."""


def names() -> list[str]:
    """Every weight of timm's ViT modules, as ARCHITECTURE.TAG."""
    import timm
    from timm.models import _registry

    modules = _registry._model_to_module
    return [name for name in timm.list_pretrained() if modules[name.split(".")[0]] in MODULES]


def family(name: str) -> str:
    """The family of a name."""
    return next((each for each, text in FAMILIES.items() if re.search(text, name)), "other ViTs")


def build(name: str) -> nn.Module:
    """timm's model of these weights with one layer, at four patches a side where it can be."""
    import timm

    arguments = timm_arguments(name.split(".")[0])
    side = 4 * (arguments.get("patch_size") or 16)
    options: list[dict[str, Any]] = [{"depth": 1, "img_size": side}, {"depth": 1}, {}]
    if (arguments.get("embed_dim") or 0) > 2000:
        narrow = {"depth": 1, "img_size": side, "embed_dim": 256, "num_heads": 4}
        options = [narrow, {**narrow, "num_kv_heads": 4}]
    for extra in options:
        try:
            with NoInit():
                return timm.create_model(name, **extra)
        except (TypeError, AssertionError, ValueError, RuntimeError, IndexError):
            continue
    raise RuntimeError(f"timm cannot build {name} at a small size")


def _size(model: Any) -> tuple[int, int]:
    return tuple(model.patch_embed.img_size)


def home(name: str, model: nn.Module) -> nn.Module:
    """The model by which the weights' outputs are judged: timm's quick one where timm says so."""
    import timm

    config: Any = model.pretrained_cfg
    if "quickgelu" in name or "natively QuickGELU" not in "".join(config.get("notes") or ()):
        return model
    twin = timm.create_model(
        name.replace("_clip_", "_clip_quickgelu_"),
        depth=1,
        img_size=_size(model),
    )
    twin.load_state_dict(model.state_dict())
    return twin.eval()


@torch.no_grad()
def outcome(name: str) -> dict[str, Any]:
    """Equal, different or refused, with the difference or the reason."""
    from timm.models import save_for_hf

    model = scatter(build(name))
    with tempfile.TemporaryDirectory() as folder:
        save_for_hf(model, folder, safe_serialization=True)
        try:
            ours = vit.create_model(pretrained=folder, report=lambda _: None)
        except UserError as error:
            return {"answer": "refused", "why": str(error).replace(folder, "DIR")}
    size: Any = model.patch_embed.img_size
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1)).double()
    theirs = home(name, model).double()(images)
    difference = float("inf")
    mine = ours.double().eval()(images)
    if mine.shape == theirs.shape:
        difference = ((mine - theirs).abs().max() / theirs.abs().max()).item()
    return {"answer": "equal" if difference < EQUAL else "different", "difference": difference}


def text(document: dict[str, Any]) -> str:
    """The part of the page: counts by family."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, row in document["weights"].items():
        counts[family(name)][row["answer"]] += 1
    assert not any(count["different"] for count in counts.values())
    order = [*(each for each in (*FAMILIES, "other ViTs") if each in counts)]
    rows = [(sum(counts[f].values()), counts[f]["equal"], counts[f]["refused"]) for f in order]
    whole = [sum(column) for column in zip(*rows, strict=True)]
    largest = max(row.get("difference", 0.0) for row in document["weights"].values())
    head = ("family", "weights", "equal", "refused")
    return "\n".join(
        [
            f"Of the {whole[0]} weights that timm {document['timm']} lists in its modules "
            f"`{'`, `'.join(MODULES)}`, {whole[1]} load with the\noutputs of their home "
            f"(`benchmarks/parity/timm_weights.py`, {document['date']}; largest difference "
            f"{largest:.0e} of the largest output, in float64).\n",
            table(head, [(each, *row) for each, row in zip(order, rows, strict=True)]),
            f"| all | {' | '.join(map(str, whole))} |",
        ]
    )


def main() -> None:
    """Measures, writes both files, and prints the counts."""
    import timm

    weights: dict[str, dict[str, Any]] = {}
    for name in names():
        weights[name] = outcome(name)
        print(name, *weights[name].values(), flush=True)
        gc.collect()
    document = {"timm": timm.__version__, "date": time.strftime("%Y-%m-%d"), "weights": weights}
    results_path("results/timm_weights").write_text(json.dumps(document, indent=1) + "\n")
    generate(PAGE, filled(PAGE, weights=text(document)))
    print(json.dumps(Counter(row["answer"] for row in weights.values())))


if __name__ == "__main__":
    main()
