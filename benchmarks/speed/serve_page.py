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
        f"ask for 40 photos in turn; servers take turns of a few seconds, {rounds} "
        f"rounds. Other processes, clients included, used {low:.1f} to {high:.1f} cores meanwhile: "
        "compare ratios over the first row of the same clients (median and range of the rounds) "
        "and CPU times, not requests per second.",
        110,
    )


def loads(rows: Rows) -> str:
    """Servers under load."""
    lines = []
    for row in rows:
        name = row["server"] + (f", --batch {row['batch']}" if "batch" in row else "")
        lines.append((row["clients"], name, *measured(row)))
    return table(("clients", "server", *HEAD), lines)


def equal(rows: Rows) -> str:
    """Answers against those of `vit classify`."""
    lines = []
    for row in rows:
        name = row["server"] + (f", --batch {row['batch']}" if row["batch"] > 1 else "")
        same = f"{row['identical']} of {row['photos']}"
        lines.append((name, same, f"{row['difference']:.0e}" if row["difference"] else "0"))
    head = ("server", "photos with the digits of `vit classify --json`", "largest difference")
    return table(head, lines)


def memory(rows: Rows) -> str:
    """Memory after requests."""
    texts = []
    for row in rows:
        sizes = [f"{size / 2**20:,.0f} after {count:,}" for count, size in row["bytes"]]
        texts.append(f"Resident MiB of {row['server']} by requests: {', '.join(sizes)}")
    about = "(8 clients, photos of 64 pixels, the model at 28 pixels)."
    return fill(f"{'; '.join(texts)} {about}", 110)


def end(rows: Rows) -> str:
    """What clients meet at SIGTERM."""
    lines = []
    for row in rows:
        met = {"200": 0, "refused": 0, **row["after"]}
        others = sum(met.values()) - met["200"] - met["refused"]
        lines.append((row["server"], met["200"], met["refused"], others, row["status"]))
    head = ("SIGTERM with 32 clients", "then answered 200", "refused", "cut off", "status")
    return table(head, lines)


SECTIONS = {"load": loads, "batch": loads, "equal": equal, "memory": memory, "end": end}


def text(content: dict[str, Any]) -> str:
    """What docs/serve.md says of a results file; parts that were not measured are left out."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in content["rows"]:
        parts.setdefault(row["part"], []).append(row)
    shown = [write(parts[name]) for name, write in SECTIONS.items() if name in parts]
    return "\n\n".join([about(content), *shown])


if __name__ == "__main__":
    *_, last = sorted(RESULTS.glob("serve_cpu_*.json"))
    raise SystemExit(generate(PAGE, filled(PAGE, serve=text(load(f"results/{last.stem}")))))
