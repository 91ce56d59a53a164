"""ViT, BiT ResNet and hybrid on CIFAR-10 at equal training FLOPs.

    python benchmarks/equal_flops.py [--seeds 3] [--runs DIR] [-- OPTIONS OF vit fit]

The recipes cifar10/equal_flops_{vit,bit,hybrid} see the same number of images with networks of
equal cost. Options after --, such as --data.root cifar10/, go to every run. All three run with one
seed before the next seed starts. An interrupted command resumes and reuses finished runs.

Forward FLOPs are counted by torch.utils.flop_counter for one image (two per multiply-add); training
FLOPs are three times that per image seen. Writes benchmarks/results/equal_flops_cifar10.json; the
last line of output is that JSON.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cells import run_cell  # noqa: E402
from collect import row  # noqa: E402

from vit.compute.flops import work  # noqa: E402
from vit.models.zoo import config_from_dict  # noqa: E402

MODELS = ("vit", "bit", "hybrid")
RECIPE = "cifar10/equal_flops_{}"


def forward_flops(config: dict[str, Any]) -> int:
    """FLOPs of one image, for a model configuration from summary.json."""
    return work(config_from_dict(config)).flops


def measured(name: str, runs: list[Path], summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """One model: accuracy of each seed, mean and deviation, cost, machine, versions, commit."""
    seen = {summary["images_seen"] for summary in summaries}
    if len(seen) > 1:
        raise SystemExit(f"{name}: the seeds saw different numbers of images: {sorted(seen)}")
    forward = forward_flops(summaries[0]["model"])
    return {
        **row(name, runs),
        "accuracies": [summary["metrics"]["test/acc1"] for summary in summaries],
        "cpu_seconds": [summary["train_cpu_seconds"] for summary in summaries],
        "forward_flops": forward,
        "training_flops": 3 * forward * seen.pop(),
    }


def main(args: list[str]) -> dict[str, Any]:
    at = args.index("--") if "--" in args else len(args)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/equal_flops"))
    parser.add_argument(
        "--results", type=Path, default=HERE / "results" / "equal_flops_cifar10.json"
    )
    options, rest = parser.parse_args(args[:at]), args[at + 1 :]
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in MODELS}
    runs: dict[str, list[Path]] = {name: [] for name in MODELS}
    document: dict[str, Any] = {}
    for seed in range(options.seeds):
        for name in MODELS:
            folder = options.runs / name / f"seed-{seed}"
            arguments = ["-c", RECIPE.format(name), *rest, "--seed_everything", str(seed)]
            summaries[name].append(run_cell(arguments, folder))
            runs[name].append(folder)
        rows = [measured(name, runs[name], summaries[name]) for name in MODELS]
        costs = [entry["training_flops"] for entry in rows]
        # The costs are only nearly equal; the result records how nearly.
        document = {"largest_over_smallest_flops": max(costs) / min(costs), "rows": rows}
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(document, indent=2) + "\n")
    return document


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
