"""Moves the files of vit/ and tests/ to the core's rooms and vit/extensions/, and rewrites every
name of a moved module: imports, strings, paths in pages.

    python benchmarks/moves.py    # in a clean checkout; a second run changes nothing
"""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTENSIONS: dict[str, tuple[str, dict[str, str]]] = {
    "formats": (
        "Weights of timm, Hugging Face, Google and torchvision, in and out; published names, the\n"
        "hub, and rotary positions. Pages: docs/weights.md, docs/families.md.",
        {
            "checkpoints": "class_names convert download exporting facts google "
            "hub layout preprocessing publish published "
            "refusals torchvision",
            "models": "rotary",
            "cli": "convert download",
            "checkpoints/timm": "__init__=timm families=timm_families reading=timm_reading "
            "writing=timm_writing",
            "checkpoints/huggingface": "__init__=huggingface bit=huggingface_bit "
            "labels=huggingface_labels "
            "reading=huggingface_reading writing=huggingface_writing",
        },
    ),
    "sources": (
        "Images from tar shards, Parquet, addresses and Datasets of Python; files that are not\n"
        "RGB. Page: docs/data.md.",
        {"data": "addresses kinds lists opened own pack parquet raster shards"},
    ),
    "recipes": (
        "Published augmentations (RandAugment's three), optimizers (LAMB, SGDW) and EMA, and an\n"
        "augmentation of the user's. Page: docs/data.md.",
        {
            "data": "extra randaugment",
            "training/callbacks": "ema",
            "training/optimizers": "foreach",
        },
    ),
    "adaptation": (
        "Low-rank updates (LoRA), and distillation. Page: docs/finetuning.md.",
        {"training": "distillation lora"},
    ),
    "pretraining": (
        "Training without labels: masked patches, MAE and AIM. Page: docs/pretraining.md.",
        {
            "training": "autoregressive masked_autoencoder masked_patches masking patch_metrics "
            "patch_prediction pixel_prediction",
        },
    ),
    "variants": (
        "Mechanisms that papers propose and no published weights need. Page: docs/variants.md.",
        {
            "variants": "additive convolution experts feedforward mixing recurrent relative "
            "residuals softmax sparse stacks synthesizers table"
        },
    ),
    "evaluation": (
        "Frozen features, few-shot, k-NN and logistic probes, ImageNet's other sets,\n"
        "corruptions, paired tests. Pages: docs/evaluation.md, docs/robustness.md.",
        {
            "evaluation": "attentive features fewshot frozen imagenet_variants knn probe "
            "robustness",
            "data": "corruptions",
            "runs": "paired robustness=robustness_pictures",
            "cli": "fewshot frozen imagenet knn paired probe robustness",
        },
    ),
    "datacheck": (
        "Bad files, copies, leaks and labels in doubt of a data set. Page: docs/data_check.md.",
        {"data": "check", "evaluation": "copies doubt", "reports": "findings", "cli": "data"},
    ),
    "trust": (
        "Sets of classes, and images of none of them. Page: docs/trust.md.",
        {
            "inference": "trust trust_answers unknown",
            "evaluation": "rejection",
            "runs": "trust=measuring unknown=choosing",
            "cli": "trust",
        },
    ),
    "transfer": (
        "Fine-tuning on several data sets, VTAB, and self-training. Pages: docs/transfer.md,\n"
        "docs/self_training.md.",
        {
            "data": "pseudo vtab vtab_source",
            "runs": "protocols selftrain transfer transfer_table",
            "cli": "selftrain trainings transfer",
        },
    ),
    "serving": (
        "Exported models with proof, other runtimes, and answers for folders of images. Pages:\n"
        "docs/export.md, docs/trust.md.",
        {
            "exports": "page proof quantize source write",
            "inference": "answer_files answers engines graph",
            "cli": "answer_out export",
        },
    ),
    "inspection": (
        "Attention, rollout, Grad-CAM and filters of a model. Page: docs/inspection.md.",
        {
            "inspection": "__init__ capture figures gradients looks maps page parameters subject "
            "survey",
            "cli": "inspect",
        },
    ),
    "reports": (
        "The report of a run, and its figures. Page: docs/runs.md.",
        {
            "": "intervals",
            "evaluation": "reliability",
            "reports": "curves drawing figures lettering page pretraining report results scaling "
            "scores wording",
        },
    ),
    "compute": (
        "Operations, memory, time and price of models and trainings. Page: docs/compute.md.",
        {
            "compute": "bench candidate comparison cost devices flops memory table6 tables timing "
            "trainings",
            "cli": "bench compare",
        },
    ),
    "scale": (
        "FSDP2, sharded checkpoints, and the batch that fits. Page: docs/scaling.md.",
        {"training": "sharding", "checkpoints": "sharded", "runs": "batch_trial"},
    ),
    "doctor": (
        "A check of the installation. Page: docs/runs.md.",
        {"runs": "doctor", "cli": "doctor"},
    ),
}
"""Extension -> its docstring, and its files by today's room; NAME=OTHER gets another name, and a
command is named cli_NAME."""
RENAMED = {
    "checkpoints/files": "weights/weight_file",
    "checkpoints/writing": "weights/sealed",
    "data/options": "data/settings",
    "runs/files": "runs/records",
    "inference/transforms": "inference/image_transform",
    "training/classifier": "training/image_classifier",
    "training/optimizers/groups": "training/optimizers/param_groups",
}
"""Files of the core whose name was twice in it."""
ROOMS = {
    "compute": "compute",
    "evaluation": "evaluation",
    "exports": "serving",
    "inspection": "inspection",
    "reports": "reports",
    "variants": "variants",
}
"""Rooms that are left empty."""
BESIDE = {
    "inspection/page.js": "inspection",
    "inspection/page.css": "inspection",
    "inspection/page.html": "inspection",
    "checkpoints/imagenet1k.txt.gz": "formats",
    "checkpoints/imagenet21k.txt.gz": "formats",
    "checkpoints/published.json": "formats",
    "data/vtab.json": "transfer",
    "reports/findings.html": "datacheck",
    "reports/report.html": "reports",
    "reports/blocks.html": "reports",
    "reports/page.css": "reports",
    "reports/page.html": "reports",
}
"""Files that are read by a module beside them."""
TESTS: dict[str, dict[str, str]] = {
    "formats": {
        "checkpoints": "convert dinov3 download families google hub huggingface named_weights "
        "preprocessing publish published timm timm_habits torchvision",
        "models": "rotary",
        "cli": "convert=convert_command download_command",
    },
    "sources": {"data": "own pack parquet raster shards statistics"},
    "recipes": {
        "data": "extra randaugment",
        "training/callbacks": "ema",
        "training/optimizers": "foreach",
    },
    "adaptation": {"training": "distillation lora"},
    "pretraining": {
        "training": "autoregressive masked_autoencoder masked_patches masking patch_metrics",
        "runs": "fit_autoregressive fit_mae fit_masked_patches",
    },
    "variants": {"variants": "contract mixers modifications positions runs"},
    "evaluation": {
        "evaluation": "attentive features fewshot imagenet_variants knn page probe robustness",
        "data": "corruptions",
        "runs": "paired",
        "cli": "imagenet robustness=robustness_command",
    },
    "datacheck": {"data": "check hashes", "evaluation": "copies doubt", "cli": "data"},
    "trust": {
        "inference": "trust unknown",
        "evaluation": "rejection",
        "runs": "trust=measuring unknown=choosing",
    },
    "transfer": {"data": "pseudo vtab vtab_originals", "runs": "selftrain transfer transfer_table"},
    "serving": {"exports": "quantize write", "inference": "answers engines"},
    "inspection": {"inspection": "gradients looks maps parameters peers", "cli": "inspect"},
    "reports": {
        "": "intervals",
        "evaluation": "reliability",
        "reports": "curves drawing figures pretraining results scaling scores wording",
    },
    "compute": {
        "compute": "bench candidate cost devices flops memory table6 tables timing trainings",
        "cli": "bench=bench_command compare",
    },
    "scale": {"training": "sharding", "checkpoints": "sharded", "runs": "batch_trial sharded_runs"},
    "doctor": {"cli": "doctor"},
}
"""Extension -> test_NAME.py by today's room."""
HELPERS = {
    "variants": "variants/entries variants/mixer_entries variants/modification_entries "
    "variants/numpy_mixers variants/numpy_modifications variants/numpy_variants "
    "variants/traced_parts",
    "pretraining": "training/vit_mae",
    "scale": "training/sharded",
    "compute": "compute/conftest compute/formulas compute/two_devices",
    "reports": "reports/conftest",
    "evaluation": "evaluation/conftest",
}
"""Extension -> other modules of its tests."""


def pairs(files: dict[str, str]) -> list[tuple[str, str, str]]:
    """(room, name, new name) of each file."""
    named = [(room, word.split("=")) for room, words in files.items() for word in words.split()]
    return [(room, parts[0], parts[-1]) for room, parts in named]


def moved_files() -> dict[Path, Path]:
    """Old -> new path below ROOT."""
    moves: dict[str, str] = {}
    for extension, (_, files) in EXTENSIONS.items():
        for room, name, new in pairs(files):
            new = f"cli_{new}" if room == "cli" else new
            old = f"vit/{room}/{name}.py".replace("//", "/")
            moves[old] = f"vit/extensions/{extension}/{new}.py"
    for old, extension in BESIDE.items():
        moves[f"vit/{old}"] = f"vit/extensions/{extension}/{Path(old).name}"
    moves |= {f"vit/{old}.py": f"vit/{new}.py" for old, new in RENAMED.items()}
    for extension, files in TESTS.items():
        for room, name, new in pairs(files):
            old = f"tests/{room}/test_{name}.py".replace("//", "/")
            moves[old] = f"tests/extensions/{extension}/test_{new}.py"
    for extension, names in HELPERS.items():
        for name in names.split():
            moves[f"tests/{name}.py"] = f"tests/extensions/{extension}/{Path(name).name}.py"
    for top in ("vit", "tests"):  # the rest of a room with a new name
        for path in sorted((ROOT / top / "checkpoints").rglob("*.py")):
            old = str(path.relative_to(ROOT))
            moves.setdefault(old, old.replace("/checkpoints/", "/weights/"))
    return {Path(old): Path(new) for old, new in moves.items()}


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def move(moves: dict[Path, Path]) -> None:
    for extension, (text, _) in EXTENSIONS.items():
        folder = ROOT / "vit" / "extensions" / extension
        folder.mkdir(parents=True, exist_ok=True)
        if extension != "inspection":  # whose own moves
            (folder / "__init__.py").write_text(
                f'"""{text}\n"""\n' if "\n" in text else f'"""{text}"""\n'
            )
    text = '"""Features that the core does not know: a folder each, and rows of vit/tables.py."""\n'
    (ROOT / "vit" / "extensions" / "__init__.py").write_text(text)
    for old, new in moves.items():
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", str(old), str(new)], cwd=ROOT, check=True)
    for room in ("compute", "evaluation", "exports", "reports", "variants"):
        for left in [f"vit/{room}/__init__.py", *(f"tests/{room}/conftest.py",)]:
            if (ROOT / left).is_file():
                subprocess.run(["git", "rm", "-q", left], cwd=ROOT, check=True)


def rewritten(text: str, modules: dict[str, str], paths: dict[str, str], *, python: bool) -> str:
    if python:
        text = with_imports(text, modules)
    for names, edge in ((paths, r"(?![\w/])"), (modules, r"(?!\.py\b|\w)")):
        words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        text = re.sub(rf"(?<![\w./])({words}){edge}", lambda match: names[match[1]], text)  # noqa: B023
    return text


def with_imports(text: str, modules: dict[str, str]) -> str:
    """`from PACKAGE import MODULE` where MODULE has moved."""
    lines = text.splitlines(keepends=True)
    for node in reversed([n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]):
        homes: dict[str, list[str]] = {}
        for alias in node.names:
            old = f"{node.module}.{alias.name}"
            package, _, name = modules.get(old, old).rpartition(".")
            shown = alias.asname or alias.name
            homes.setdefault(package, []).append(name if name == shown else f"{name} as {shown}")
        if [*homes] == [node.module] and all(
            f"{node.module}.{a.name}" not in modules for a in node.names
        ):
            continue
        indent = " " * node.col_offset
        new = [f"{indent}from {home} import {', '.join(names)}\n" for home, names in homes.items()]
        lines[node.lineno - 1 : node.end_lineno] = new
    return "".join(lines)


def main() -> None:
    moves = moved_files()
    missing = [str(old) for old in moves if not (ROOT / old).is_file()]
    if missing:
        print("not there:", *missing)
    moves = {old: new for old, new in moves.items() if (ROOT / old).is_file()}
    move(moves)
    modules = {module_of(old): module_of(new) for old, new in moves.items() if old.suffix == ".py"}
    paths = {str(old): str(new) for old, new in moves.items()}
    modules |= {f"vit.{room}": f"vit.extensions.{home}" for room, home in ROOMS.items()}
    paths |= {f"vit/{room}": f"vit/extensions/{home}" for room, home in ROOMS.items()}
    paths |= {"vit/checkpoints": "vit/weights", "tests/checkpoints": "tests/weights"}
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    suffixes = {".py", ".md", ".yaml", ".yml", ".toml", ".html", ".ipynb", ".css", ".sh", ""}
    for name in listed:
        path = ROOT / name
        kept = name.startswith("benchmarks/results") or name in (
            "CHANGELOG.md",
            "benchmarks/moves.py",
        )
        if kept or path.suffix not in suffixes or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        new = rewritten(text, modules, paths, python=path.suffix == ".py")
        if new != text:
            path.write_text(new, encoding="utf-8")
    for command in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
        subprocess.run(["ruff", *command, "vit", "tests", "benchmarks"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
