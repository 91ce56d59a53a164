"""Which families of ViTs load, and whether each has the logits of its own library.

    python -m benchmarks.parity.families [--only WORD] [--rows FILE]

Models of timm and transformers are built at depth 1 or 2 with random values in every parameter and
buffer, saved as their library saves them and as a bare state dict, and loaded by `vit`. Each must
return its library's logits, or be refused in one line. Writes benchmarks/results/families.json and
docs/families.md; the last line of output counts the outcomes.
"""

import argparse
import gc
import json
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import vit
from benchmarks.lib.family_cases import Case, timm_cases, transformers_cases
from benchmarks.lib.pages import ROOT, filled, generate, results_path, table
from vit.errors import UserError

PAGE = ROOT / "docs" / "families.md"
EQUAL = 1e-5
"""Largest relative difference in double precision. Some tokens and their positions are added in
float32, which leaves 1e-7; another epsilon, GELU or number of heads leaves more than this."""
MOVES = 5e-3
"""Redrawing any parameter of a model must change its logits by more than this."""
LOADED = {
    "ViT and AugReg": "vit_base_patch16_224",
    "DeiT": "deit_tiny_distilled_patch16_224",
    "DeiT-III": "deit3_small_patch16_224",
    "DINOv2": "vit_small_patch14_dinov2",
    "DINOv3": "vit_small_patch16_dinov3",
    "SigLIP": "vit_base_patch16_siglip_224",
    "CLIP": "vit_xsmall_patch16_clip_224",
    "Perception Encoder": "vit_pe_core_tiny_patch16_384",
    "EVA-02": "eva02_base_patch14_224",
    "FlexiViT": "flexivit_small",
    "MAE": "ViTMAEModel",
    "MSN": "ViTMSNModel",
    "the hybrids": "vit_small_r26_s32_224",
    "BiT": "resnetv2_50x1_bit",
}
"""Family by the name that people know -> a model of it that is equal."""
REFUSED = {
    "relative positions (BEiT, Swin)": ("beit_base_patch16_224", "swin_tiny_patch4_window7_224"),
    "rotary positions of other kinds (RoPE-ViT)": ("vit_base_patch16_rope_224",),
    "stages of different width (Hiera, LeViT, PiT)": ("hiera_tiny_224", "levit_128s", "pit_ti_224"),
    "another attention (CaiT, XCiT, VOLO)": (
        "cait_xxs24_224",
        "xcit_nano_12_p16_224",
        "volo_d1_224",
    ),
}
"""What a model has that this package does not compute -> models that are refused for it."""


@dataclass(kw_only=True)
class Row:
    """The outcome of loading one file."""

    library: str
    family: str
    model: str
    layout: str
    arguments: dict[str, Any]
    answer: str
    """equal, different, refused, assumed, or the name of an exception that is no refusal."""
    difference: float | None = None
    """Largest relative difference of the logits, in float64."""
    least_moved: float | None = None
    """Smallest relative change of the logits when one kind of parameter is redrawn; narrow models
    only."""
    sentence: str = ""
    """Why it was refused."""
    notes: str = ""


class NoInit(TorchFunctionMode):
    """Zeros instead of slow random initialization; `scatter` draws all parameters later."""

    SKIPPED = frozenset(("uniform_", "normal_", "erfinv_", "trunc_normal_", "clamp_"))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in self.SKIPPED:
            return (args[0] if args else kwargs["tensor"]).zero_()
        return func(*args, **(kwargs or {}))


def scatter(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random values in every parameter and saved buffer of numbers, small enough to stay finite.

    The patch embedding gets small values, so that the epsilon of the first norm matters.
    """
    generator = torch.Generator().manual_seed(seed)
    saved_names = module.state_dict().keys()  # other buffers are constants, such as rotary tables
    buffers = [entry for entry in module.named_buffers() if entry[0] in saved_names]
    tensors = [*module.named_parameters(), *buffers]
    with torch.no_grad():
        for name, tensor in tensors:
            if tensor.is_floating_point():
                _draw(name, tensor, generator)
    return module.eval()


def _draw(name: str, tensor: Tensor, generator: torch.Generator) -> None:
    noise = torch.empty(tensor.shape).normal_(generator=generator)
    if "attn_pool.q" in name or "attn_pool.kv" in name:
        noise *= 3  # otherwise attention is uniform and the query has little effect
    if name.endswith("running_var"):
        tensor.copy_(0.5 + noise.abs())
    elif tensor.ndim <= 1:
        is_scale = name.endswith(("weight", "gamma", "lambda1", "gamma_1", "gamma_2"))
        tensor.copy_(float(is_scale) + 0.3 * noise)
    elif name.endswith("weight"):
        # A non-zero mean, which weight standardisation must remove.
        small = 0.1 if "patch_embed.proj" in name or "projection" in name else 1.5
        tensor.copy_(small * (noise + 0.1) / tensor[0].numel() ** 0.5)
    else:
        # They have a small effect on what is pooled.
        small = name.endswith(("reg_token", "cls_token", "latent"))
        tensor.copy_((1.5 if small else 0.3) * noise)


def saved(case: Case, peer: nn.Module, layout: str, folder: Path) -> Path:
    """The file or directory a user of the library would have."""
    if layout == "bare, .pth":
        torch.save(peer.state_dict(), folder / "model.pth")
        return folder / "model.pth"
    if layout == "bare, .safetensors":
        from safetensors.torch import save_file

        # Tied or overlapping tensors are refused by the format.
        save_file({k: v.clone().contiguous() for k, v in peer.state_dict().items()}, folder / "w")
        return (folder / "w").rename(folder / "model.safetensors")
    case.save(peer, folder)
    return folder


@torch.no_grad()
def measure(
    case: Case, layouts: tuple[str, ...] | None = None, moving: bool = True
) -> Iterator[Row]:
    """One row per layout. `moving`: also measure how narrow models' parameters move the logits."""
    with NoInit():
        peer = case.build()
    scatter(peer)
    images = torch.randn(
        2 if case.narrow else 1,
        case.channels,
        *case.size(peer),
        generator=torch.Generator().manual_seed(1),
    ).double()
    theirs: Tensor | None = None
    moved: float | None = None
    for layout in layouts or case.layouts:
        with tempfile.TemporaryDirectory() as name:
            row, ours = _loaded(case, saved(case, peer.float(), layout, Path(name)), layout)
        if ours is not None:
            if theirs is None:
                theirs = case.answer(peer.double(), images)
            mine = ours.double().eval()(images)
            row.difference = _difference(mine, theirs)
            row.answer = "equal" if row.difference < EQUAL else "different"
            if row.answer == "different" and layout != "library" and case.unseen:
                row.answer = "assumed"
            if moving and case.narrow and moved is None:
                moved = least_moved(ours, images)
            row.least_moved = moved
        yield row


def _loaded(case: Case, path: Path, layout: str) -> tuple[Row, nn.Module | None]:
    row = Row(
        library=case.library,
        family=case.family,
        model=case.model,
        layout=layout,
        arguments=case.shown,
        answer="refused",
    )
    try:
        reports: list[Any] = []
        ours = vit.create_model(pretrained=path, report=reports.append)
    except UserError as error:
        row.sentence = str(error).replace(str(path), "FILE").replace(str(path.parent), "DIR")
        return row, None
    except Exception as error:
        row.answer, row.sentence = type(error).__name__, str(error)[:200]
        return row, None
    row.notes = "; ".join(reports[0].notes)
    return row, ours


def _difference(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def least_moved(model: nn.Module, images: Tensor) -> float:
    """The smallest relative change of the logits over the kinds of parameters of the model.

    Kinds are names without layer numbers; all parameters of one kind are redrawn together.
    """
    before = model(images)
    kinds: dict[str, list[tuple[str, Tensor]]] = {}
    for name, parameter in model.named_parameters():
        kind = ".".join(part for part in name.split(".") if not part.isdigit())
        kinds.setdefault(kind, []).append((name, parameter))
    least = float("inf")
    generator = torch.Generator().manual_seed(2)
    for members in kinds.values():
        originals = [parameter.clone() for _, parameter in members]
        for name, parameter in members:
            _draw(name, parameter, generator)
        least = min(least, _difference(model(images), before))
        for (_, parameter), values in zip(members, originals, strict=True):
            parameter.copy_(values)
    return least


def run(only: str, say: Callable[[str], None]) -> list[Row]:
    """All rows; reports each through `say`."""
    rows = []
    for case in [*timm_cases(), *transformers_cases()]:
        if only not in str(case):
            continue
        for row in measure(case):
            rows.append(row)
            number = "" if row.difference is None else f"{row.difference:.1e} "
            moved = "" if row.least_moved is None else f"(moves {row.least_moved:.1e}) "
            say(f"{row.model:42} {row.layout:18} {row.answer:9} {number}{moved}{row.sentence}")
        gc.collect()
    return rows


def text(document: dict[str, Any]) -> str:
    """The generated part of docs/families.md: counts, then one table per library."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    by_library: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        by_library.setdefault(row["library"], []).append(row)
    counts = []
    for library, rows in by_library.items():
        for layout in ("library", "bare"):
            chosen = (row["answer"] for row in rows if row["layout"].split(",")[0] == layout)
            count = Counter(chosen)
            answers = (count[answer] for answer in ("equal", "refused", "assumed"))
            counts.append((library, layout, *answers))
    parts = [
        f"Measured by `benchmarks/parity/families.py` on {document['date']}, with {versions}. "
        "Numbers of rows:\n",
        table(("library", "layout", "equal", "refused", "assumed"), counts),
    ]
    for library, rows in by_library.items():
        parts += [f"\n## {library}\n", table(("model", "layout", "answer"), outcomes(rows))]
    return "\n".join(parts)


def summary(document: dict[str, Any]) -> str:
    """The result in words, at the top of the page. Raises AssertionError if a family that it names
    has another answer."""
    rows = document["rows"]
    equal = {row["model"] for row in rows if row["answer"] == "equal"}
    refused = {row["model"] for row in rows} - equal
    assert {*LOADED.values()} <= equal and {
        m for names in REFUSED.values() for m in names
    } <= refused
    largest = max(row["difference"] for row in rows if row["answer"] == "equal")
    count = Counter((row["layout"].split(",")[0], row["answer"]) for row in rows)
    whole = sum(n for (layout, _), n in count.items() if layout == "library")
    bare = sum(n for (layout, _), n in count.items() if layout == "bare")
    models = {
        library: {row["model"] for row in rows if row["library"] == library}
        for library in ("timm", "transformers")
    }
    loaded = " and ".join(
        f"{len(names & equal)} of the {len(names)} models of {library}"
        for library, names in models.items()
    )
    *first, last = LOADED
    parts = (
        f"**What loads.** {loaded} load with the logits of their own library: the largest "
        f"difference is {largest:.0e} of the largest logit, in float64. Among them are "
        f"{', '.join(first)} and {last}.",
        "**What is refused.** A model that computes something else is refused in one line. Most of "
        f"these have {'; '.join(REFUSED)}; or other norms.",
        f"**Keep the config.json.** As its library saves it, a model is equal in "
        f"{count['library', 'equal']} of {whole} rows; as a bare state dict in "
        f"{count['bare', 'equal']} of {bare}, and in {count['bare', 'assumed']} more with an "
        "assumption that the load prints. Tensors alone do not say how many heads attention has, "
        "which GELU is used, or how positions are rotated.",
    )
    return "\n\n".join(textwrap.fill(part, 110, break_on_hyphens=False) for part in parts)


def outcomes(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """One line per model and outcome; layouts with the same outcome share it."""
    shared: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        arguments = ", ".join(f"{k}={v}" for k, v in row["arguments"].items())
        model = row["model"] + (f" ({arguments})" if arguments else "")
        answer = f"refused: {row['sentence']}"
        if row["difference"] is not None:
            answer = f"{row['answer']}, {row['difference']:.1e}"
        layouts = shared.setdefault((model, answer.replace("|", "\\|")), [])
        if row["layout"] not in layouts:
            layouts.append(row["layout"])
    return [(model, "; ".join(layouts), answer) for (model, answer), layouts in shared.items()]


def main() -> None:
    """Measures, writes both files, and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose description contains this")
    parser.add_argument("--rows", type=Path, help="write the rows here as JSON, without the page")
    args = parser.parse_args()
    import timm
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = run(args.only, lambda line: print(line, flush=True))
    versions = {m.__name__: m.__version__ for m in (torch, timm, transformers)}
    document = {
        "what": "families",
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
        "rows": [asdict(row) for row in rows],
    }
    content = json.dumps(document, indent=1, allow_nan=True, default=str) + "\n"
    if args.rows:
        args.rows.write_text(content)
    elif not args.only:
        results_path("results/families").write_text(content)
        document = json.loads(content)
        generate(PAGE, filled(PAGE, summary=summary(document), table=text(document)))
    print(json.dumps(Counter(row.answer for row in rows)))


if __name__ == "__main__":
    main()
