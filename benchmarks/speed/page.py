"""docs/speed.md, from all files of benchmarks/results that hold times."""

import re
from pathlib import Path
from typing import Any

from benchmarks.lib.model_verdicts import mean_ratio, verdicts
from benchmarks.lib.pages import ROOT, generate, load, plus_minus, span, spread, table
from benchmarks.lib.speed_summary import summary

TEXTS = {
    name: f"{text.rstrip()}\n"
    for name, text in re.findall(
        r"^<!-- (\w+) -->\n(.*?)(?=^<!--|\Z)",
        Path(__file__).with_suffix(".md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
}
"""Name of a section -> its text, with the places of figures in braces."""


def facts(document: dict[str, Any]) -> dict[str, Any]:
    """What the head of a section says about its machine."""
    machine = {"features": "", **document["hardware"]}
    memory = machine.pop("memory_gb")
    return {**machine, **document["versions"], "memory": memory, "date": document["date"]}


def models(document: dict[str, Any]) -> list[str]:
    """Ours against the best peer."""
    best = verdicts(document["rows"], document.get("finals", ()))
    lines = [
        (
            r["model"],
            f"{r['what']}, {r['batch_size']}, {r['precision']}",
            spread(*r["ratio"]),
            f"{r['ours'].removeprefix('vit, ')} / {r['peer']}",
            f"{r['utilisation']:.0%}",
            "" if None in r["errors"] else " / ".join(f"{e:.1e}" for e in r["errors"]),
        )
        for r in best
    ]
    head = ("model", "task, batch", "ratio", "ours / peer", "of peak", "error")
    means = [
        f"{precision} {mean_ratio(best, precision):.3f}"
        for precision in dict.fromkeys(r["precision"] for r in best)
    ]
    once = [f"{r['model']} {r['what']}" for r in best if not r["again"]]
    first = f" Not measured again, median and range instead: {', '.join(once)}." if once else ""
    note = f"Geometric mean of the ratios: {', '.join(means)}.{first} {document.get('note', '')}"
    return [
        TEXTS["verdicts"].format(**facts(document)),
        table(head, lines),
        "",
        note.strip() + "\n",
    ]


def threads(document: dict[str, Any]) -> list[str]:
    """Images per second by number of threads."""
    lines = [
        (
            r["model"],
            f"{r['what']}, {r['batch_size']}",
            f"{r['gflop']:.1f}",
            r["threads"],
            f"{r['images_per_second']:.1f}",
            span(r),
            "" if r["others"] is None else f"{r['others']:.2f}",
        )
        for r in document["rows"]
    ]
    head = ("model", "task, batch", "GFLOP", "threads", "images/s", "ratio", "others")
    return [
        TEXTS["threads"].format(**facts(document)),
        table(head, lines) + "\n",
    ]


def fit_loop(document: dict[str, Any]) -> list[str]:
    """What Lightning and this package add to a loop."""
    rows = document["rows"]
    lines = [
        (r["case"], *(f"{v:.2f}" for v in r["images_per_cpu_second"].values()), span(r))
        for r in rows
    ]
    head = ("case", *rows[0]["images_per_cpu_second"], "ratio")
    rounds = {name: rows[0][name] for name in ("rounds", "steps")}
    return [TEXTS["fit_loop"].format(**facts(document), **rounds), table(head, lines) + "\n"]


NOT_INSTALLED = dict.fromkeys(
    ("timm", "transformers", "onnxruntime", "openvino", "nncf", "webdataset", "litdata"),
    "not installed",
)


def engines(document: dict[str, Any]) -> list[str]:
    """Models by engine and precision."""
    lines = []
    for r in document["rows"]:
        arm = (r["model"], r["batch_size"], r["engine"], r["precision"])
        if "not_run" in r:
            lines.append((*arm, f"not run: {r['not_run']}", "", "", ""))
            continue
        over = [r["over_float32"], r["over_bfloat16"]]
        ratios = ["" if ratio is None else span(ratio) for ratio in over]
        difference = f"{r['difference']:.1e}" if r["difference"] else "0"
        lines.append((*arm, f"{1e3 * r['seconds']:.1f}", *ratios, difference))
    threads = document["threads"]
    clock = "CPU time of one thread" if threads == 1 else f"wall-clock time of {threads} threads"
    about = NOT_INSTALLED | facts(document) | {"clock": clock}
    head = ("model", "batch", "engine", "precision", "ms", "over float32", "over bfloat16")
    text = TEXTS["engines"].format(**about, instructions=", ".join(document["instructions"]))
    return [text, table((*head, "difference"), lines) + "\n"]


OF_MODEL = {"of_model": "of the model", "of_model_cpu": "of the model, CPU"}
"""Field of a row of folder_speed, without start-up -> head of its column."""


def folder(document: dict[str, Any]) -> list[str]:
    """Photos per second."""
    lines: list[tuple[str, ...]] = []
    more = [name for name in OF_MODEL if any(name in r for r in document["rows"])]
    for r in document["rows"]:
        if "not_run" in r:
            lines.append((r["arm"], "", f"not run: {r['not_run']}", "", "", *("" for _ in more)))
            continue
        settings = ", ".join(f"{name} {value}" for name, value in r["settings"].items())
        rate = f"{r['images_per_second']:.1f}"
        equal = f"{r['equal_answers']:.1%}" if "equal_answers" in r else ""
        cells = (r["arm"], settings, rate, span(r), equal)
        lines.append((*cells, *(span(r[name]) for name in more)))
    sizes = {"model": document.get("model", "ViT-S/16")}
    sizes |= {name: document[name] for name in ("count", "rounds")}
    only = document.get("only", "")
    sizes |= {"only": f" --arms {only}" * bool(only), "reference": only or "float32"}
    text = TEXTS["folder"].format(**NOT_INSTALLED | facts(document), **sizes)
    text += TEXTS["of_model"] if more else ""
    head = ("", "settings", "photos/s", "ratio", "equal", *map(OF_MODEL.__getitem__, more))
    return [text, table(head, lines) + "\n"]


def shards(document: dict[str, Any]) -> list[str]:
    """Images per second by source."""
    lines = []
    for r in document["rows"]:
        over = {name.split()[0]: span(ratio) for name, ratio in r["over_peer"].items()}
        peers = [over.get(name, "") for name in ("webdataset", "litdata")]
        rate = f"{r['images_per_second']:,.0f}"
        lines.append(
            (f"{r['images']}, {r['count']:,}", r["arm"], rate, span(r["of_limit"]), *peers)
        )
    sizes = " and ".join(f"{side} pixels ({name})" for name, side in document["sizes"].items())
    about = NOT_INSTALLED | facts(document) | {"sizes": sizes, "rounds": document["rounds"]}
    text = TEXTS["shards"].format(**about, latency=1000 * document["latency"])
    head = ("images", "arm", "images/s", "of the limit", "over webdataset", "over litdata")
    return [text, table(head, lines) + "\n"]


def startup(document: dict[str, Any]) -> list[str]:
    """Seconds of short commands."""
    lines = [
        (
            r["command"],
            spread(r["cpu_seconds"], r["min"], r["max"]),
            f"{r['above_import_torch']:+.2f}",
        )
        for r in document["rows"]
    ]
    head = ("command", "CPU seconds", "above importing torch")
    return [TEXTS["startup"].format(**facts(document)), table(head, lines) + "\n"]


def data(document: dict[str, Any]) -> list[str]:
    """Image loading."""
    parts = [
        (f"{side} px, {what}", photos[what])
        for side, photos in document["photos"].items()
        for what in ("training", "evaluation")
    ]
    small = document["small_images_in_memory"]["training"]
    lines = [
        (
            images,
            name.removesuffix(" evaluation"),
            f"{values['images_per_second']['median']:,.0f}",
            spread(*(values["ratio"][key] for key in ("median", "min", "max"))),
        )
        for images, loaders in [*parts, ("32 px in memory, crop and flip", small)]
        for name, values in loaders.items()
    ]
    medians: dict[bool, list[float]] = {True: [], False: []}
    for photos in document["photos"].values():
        for scale, values in photos["training_pixels"].items():
            medians[scale == "decoded at 1/1"].append(values["psnr"]["median"])
    text = TEXTS["data"].format(full=min(medians[True]), scaled=min(medians[False]))
    return [text, table(("images", "loader", "images/s", "ratio"), lines) + "\n"]


def scaling(document: dict[str, Any]) -> list[str]:
    """Exponents, and processes."""
    axes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in document["rows"]:
        axes.setdefault((r["axis"].replace("image_size", "tokens"), r["way"]), []).append(r)
    ranks = axes.pop(("ranks", "training bf16"))
    lines = [
        (
            *key,
            f"{rows[0]['x']} to {rows[-1]['x']}",
            "{exponent:.2f} ({exponent_min:.2f} to {exponent_max:.2f})".format(**rows[0]),
            f"{rows[0]['exponent_of_operations']:.2f}",
        )
        for key, rows in axes.items()
    ]
    processes = [
        (r["value"], f"{r['images_per_second']:.1f} ± {r['spread']:.0%}", f"{r['efficiency']:.0%}")
        for r in ranks
    ]
    return [
        TEXTS["scaling"],
        table(("axis", "task", "range", "exponent", "of operations"), lines),
        "\nTraining with DistributedDataParallel, one core per process, wall-clock time, on a "
        "machine with other load:\n",
        table(("processes", "total images/s", "efficiency"), processes) + "\n",
    ]


def accuracy(document: dict[str, Any]) -> list[str]:
    """Accuracy in a fixed time."""
    lines = [
        (
            r["label"],
            plus_minus(100 * r["mean"], r["std"] and 100 * r["std"]),
            r["n"],
            f"{r['parameters'] / 1e6:.2f}",
            *(f"{r[name]:,.0f}" for name in ("images_seen", "seconds", "cpu_seconds")),
        )
        for r in document["rows"]
    ]
    head = ("test accuracy, %", "seeds", "M parameters", "images seen", "seconds", "CPU seconds")
    count = document["threads"]
    threads = "one thread" if count == 1 else f"{count} threads"
    text = TEXTS["accuracy"].format(seconds=document["budget_seconds"], threads=threads)
    return [text, table(("", *head), lines) + "\n"]


def gpu(document: dict[str, Any]) -> list[str]:
    """Training steps, attention, optimizers and determinism on one GPU."""
    attention, optimizers, twice = (
        load(f"results/{name}_cuda_nvidia_h200")["rows"]
        for name in ("attention", "optimizers", "determinism")
    )
    steps = [
        (
            f"{r['model']} {r['what']}, batch {r['batch_size']}",
            *(r["setting"], f"{r['images_per_second']:,.0f}", span(r), f"{r['utilisation']:.0%}"),
        )
        for r in document["rows"]
    ]
    timed = load("results/time_to_accuracy_cuda_nvidia_h200")
    accuracies = [
        f"{r['label']} {r['mean']:.1%} ({r['images_seen']:,.0f} images)" for r in timed["rows"]
    ]
    both = [r for r in attention if r["what"] == "forward and backward"]
    backends = list(dict.fromkeys(r["backend"] for r in both))
    times = {(r["tokens"], r["backend"]): f"{r['milliseconds']:.2f}" for r in both}
    tokens = list(dict.fromkeys(r["tokens"] for r in both))
    rates = [f"{r['milliseconds']:.1f} ms with {r['optimizer']}" for r in optimizers]
    costs = [
        slow["milliseconds"] / fast["milliseconds"]
        for fast, slow in zip(twice[::2], twice[1::2], strict=True)
    ]
    same = [r["model"] for r in twice if r["equal"] and not r["deterministic"]]
    machine = facts(document)
    return [
        TEXTS["gpu"].format(
            **machine, gpu=document["device"], rounds=document["rows"][0]["rounds"]
        ),
        table(("", "setting", "images/s", "over float32", "of peak"), steps),
        TEXTS["on_time"].format(seconds=timed["budget_seconds"], accuracies="; ".join(accuracies)),
        TEXTS["attention"],
        table(
            ("tokens", *(name.lower().replace("_attention", "") for name in backends)),
            [(n, *(times[n, backend] for backend in backends)) for n in tokens],
        ),
        TEXTS["others"].format(
            optimizers=", ".join(rates), equal=", ".join(same), least=min(costs), most=max(costs)
        ),
    ]


RESULTS = ROOT / "benchmarks" / "results"
BY_MACHINE = {"models": models, "engines": engines, "folder_speed": folder, "threads": threads}
BY_MACHINE |= {"fit_loop": fit_loop, "shards": shards, "startup": startup}
ON_ONE_MACHINE = {"data": data, "scaling": scaling, "time_to_accuracy": accuracy}


def page() -> str:
    """The page; SystemExit if what it has of one machine is from several."""
    files = {name: load(f"results/{name}_cpu") for name in ON_ONE_MACHINE}
    machines = [facts(f) for f in files.values()]
    names = {(m["cpu"], m["memory"], m["torch"]) for m in machines}
    if len(names) > 1:
        raise SystemExit(
            f"the results are from several machines: {sorted(names)}; measure again on one"
        )
    cores = max(machine["cores"] for machine in machines)
    words = TEXTS["summary"].format(**summary()).rstrip()
    parts = [TEXTS["head"].format(**{**machines[0], "cores": cores}, summary=words)]
    for what, section in BY_MACHINE.items():
        for path in sorted(RESULTS.glob(f"{what}_cpu_*.json")):
            parts += section(load(f"results/{path.stem}"))
    for name, section in ON_ONE_MACHINE.items():
        parts += section(files[name])
    for path in sorted(RESULTS.glob("models_cuda_*.json")):
        parts += gpu(load(f"results/{path.stem}"))
    return "\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(generate(ROOT / "docs" / "speed.md", page()))
