"""The results of docs/speed.md as numbers for its summary."""

from collections.abc import Iterable
from typing import Any

from benchmarks.lib.model_verdicts import mean_ratio, verdicts
from benchmarks.lib.pages import load

LARGE = ("vit_b16", "vit_l16", "vit_h14")


def between(values: Iterable[float], form: str = ".1f") -> str:
    """Least and most, such as '1.1 to 1.3'."""
    ordered = sorted(values)
    least, most = f"{ordered[0]:{form}}", f"{ordered[-1]:{form}}"
    return least if least == most else f"{least} to {most}"


def of_machine(name: str) -> Any:
    """Results of the AMD EPYC on which most of the page was measured."""
    return load(f"results/{name}_cpu_amd_epyc_avx512_bf16")


def networks() -> dict[str, Any]:
    """Ours over the best peer: on a CPU at its best setting, on a GPU in bfloat16."""
    cpu, gpu = (
        load("results/models_cpu_intel_xeon_2_50ghz"),
        load("results/models_cuda_nvidia_h200"),
    )
    best = verdicts(cpu["rows"], cpu.get("finals", ()))
    rates = {
        (row["model"], row["setting"]): row["images_per_second"]
        for row in gpu["rows"]
        if row["what"] == "training"
    }

    def gains(setting: str) -> list[float]:
        pairs = [(rates[m, f"vit, {setting}"], rates[m, f"timm, {setting}"]) for m in LARGE]
        return [100 * (ours / theirs - 1) for ours, theirs in pairs]

    compiled, plain = gains("bf16, compiled"), gains("bf16")
    assert min(compiled) > 0 > max(plain)  # as the text says
    return {
        "mean": mean_ratio(best, "fp32"),
        "single": between((row["ratio"][0] for row in best), ".2f"),
        "gpu": gpu["device"],
        "compiled": between(compiled, ".0f"),
        "plain": between((-gain for gain in plain), ".0f"),
    }


def exports() -> dict[str, str]:
    """Speed of ViTs in other engines, over the faster of PyTorch and timm in float32."""
    rows = [row for row in of_machine("engines")["rows"] if row["model"] != "bit_r50x1"]
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if "not_run" not in row:
            key = row["engine"], row["precision"]
            ratios.setdefault(key, []).append(row["over_float32"]["ratio"])
    return {
        "bfloat16": between(ratios["OpenVINO", "bfloat16"]),
        "int8": between(ratios["OpenVINO", "int8"]),
        "onnx": between(ratios["ONNX Runtime", "float32"]),
    }


def loading() -> dict[str, str]:
    """Speed of batches from photos over torchvision's, and of shards over other packages'."""
    sides = load("results/data_cpu")["photos"].values()
    training = [side["training"]["vit"]["ratio"]["median"] for side in sides]
    evaluation = [side["evaluation"]["vit evaluation"]["ratio"]["median"] for side in sides]
    shards = [row["over_peer"] for row in of_machine("shards")["rows"] if row["arm"] == "tar"]
    over = {
        peer: between(
            ratio["ratio"] for row in shards for name, ratio in row.items() if name.startswith(peer)
        )
        for peer in ("webdataset", "litdata")
    }
    return {"training": between(training), "evaluation": between(evaluation), **over}


def commands() -> dict[str, Any]:
    """Whole commands: a folder classified, a run around a loop, the start."""
    folder = {row["arm"]: row["ratio"] for row in of_machine("folder_speed")["rows"]}
    int8 = {row["arm"]: row for row in load("results/folder_speed_cpu_intel_xeon_2_50ghz")["rows"]}
    exported = int8["vit classify, OpenVINO int8"]
    machines = ("amd_epyc_avx512_bf16", "intel_xeon_2_50ghz")
    loops = [row for name in machines for row in load(f"results/fit_loop_cpu_{name}")["rows"]]
    rows = load("results/startup_cpu_amd_epyc")["rows"]
    seconds = {row["command"]: row["cpu_seconds"] for row in rows}
    return {
        "folder": folder["vit classify, OpenVINO"],
        "exported": exported["ratio"],
        "of_model": exported["of_model"]["ratio"],
        "cost": between((100 * (1 - row["ratio"]) for row in loops), ".0f"),
        "help": seconds["vit --help"],
        "classify": seconds["vit classify, one photo, ViT-Ti/16"],
        "torch_import": seconds["import torch"],
    }


def accuracies() -> dict[str, float]:
    """Per cent after ten minutes on one core."""
    rows = load("results/time_to_accuracy_cpu")["rows"]
    means = {row["label"]: 100 * row["mean"] for row in rows}
    return {
        "ours": means["vit"],
        "recipe": means["timm, our sizes and recipe"],
        "best": means["timm, best settings"],
    }


def summary() -> dict[str, Any]:
    """Name of a place in the text -> its value."""
    return {**networks(), **exports(), **loading(), **commands(), **accuracies()}
