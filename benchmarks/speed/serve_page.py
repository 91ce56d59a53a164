"""The tables of docs/serve.md."""

from collections.abc import Iterable
from textwrap import fill
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, span, table

PAGE = ROOT / "docs" / "serve.md"
RESULTS = ROOT / "benchmarks" / "results"
Rows = Iterable[dict[str, Any]]
HEAD = ("requests/s", "ratio", "p50 ms", "p99 ms", "CPU ms/request", "requests")


def measured(row: dict[str, Any]) -> list[str]:
    """The cells of HEAD."""
    return [
        f"{row['per_second']:.1f}",
        span(row),
        *(f"{row[name]:,.0f}" for name in ("p50_ms", "p99_ms", "cpu_ms", "requests")),
    ]


def about(content: dict[str, Any]) -> str:
    """Machine, versions, and how the tables were measured."""
    machine, versions = content["hardware"], content["versions"]
    names = ", ".join(f"{n} {versions[n]}" for n in ("torch", "openvino", "starlette", "uvicorn"))
    rows = [row for row in content["rows"] if "others" in row]
    low, high = min(row["others"] for row in rows), max(row["others"] for row in rows)
    rounds, commits = rows[0]["rounds"], sorted({row["commit"] for row in content["rows"]})
    return fill(
        f"ViT-S/14 at {rows[0]['pixels']} pixels with a head of ten random classes, float32, on "
        f"{machine['cpu']} ({machine['cores']} cores), {content['date']}, commit "
        f"{', '.join(commits)}, {names}. PyTorch has {content['threads']} thread, OpenVINO all "
        f"cores. The plain function reads the body, decodes, computes and answers within one "
        "`async def` of Starlette, with torchvision's transforms. Clients, on the same machine, "
        f"ask for 40 photos in turn; servers take turns of {content['seconds']:.0f} s, {rounds} "
        f"rounds. Other processes, clients included, used {low:.1f} to {high:.1f} cores meanwhile: "
        "compare ratios over the first row of the same clients (median and range of the rounds) "
        "and CPU times, not requests per second.",
        110,
    )


def checks(equal: Rows, memory: Rows, end: Rows) -> str:
    """Equal answers, memory, and the end by SIGTERM."""
    lines = []
    for row in equal:
        name = row["server"] + (f", --batch {row['batch']}" if row["batch"] > 1 else "")
        same = f"{row['identical']} of {row['photos']}"
        lines.append((name, same, f"{row['difference']:.0e}" if row["difference"] else "0"))
    head = ("server", "photos with the digits of `vit classify --json`", "largest difference")
    parts = [table(head, lines)]
    lines = []
    for row in memory:
        sizes = ((f"{count:,}", f"{size / 2**20:,.0f}") for count, size in row["bytes"])
        lines.append((row["server"], ", ".join(f"{size} after {n}" for n, size in sizes)))
    parts.append(table(("server", "resident MiB after requests"), lines))
    lines = []
    for row in end:
        met = {"200": 0, "refused": 0, **row["after"]}
        others = sum(met.values()) - met["200"] - met["refused"]
        lines.append((row["server"], met["200"], met["refused"], others, row["status"]))
    head = ("SIGTERM with 32 clients", "answered 200 afterwards", "refused", "cut off", "status")
    note = "Memory: 8 clients, photos of 64 pixels, the model at 28 pixels with 4 patches."
    return "\n\n".join([*parts, note, table(head, lines)])


def text(content: dict[str, Any]) -> str:
    """What docs/serve.md says of a results file."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in content["rows"]:
        parts.setdefault(row["part"], []).append(row)
    lines = [(row["clients"], row["server"], *measured(row)) for row in parts["load"]]
    loads = table(("clients", "server", *HEAD), lines)
    lines = [
        (row["clients"], f"{row['server']}, --batch {row['batch']}", *measured(row))
        for row in parts["batch"]
    ]
    batches = table(("clients", "server", *HEAD), lines)
    return "\n\n".join(
        [about(content), loads, batches, checks(parts["equal"], parts["memory"], parts["end"])]
    )


if __name__ == "__main__":
    *_, last = sorted(RESULTS.glob("serve_cpu_*.json"))
    raise SystemExit(generate(PAGE, filled(PAGE, serve=text(load(f"results/{last.stem}")))))
