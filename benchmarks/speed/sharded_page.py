"""The tables of docs/scaling.md."""

from textwrap import fill
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, table
from vit.extensions.compute.tables import amount

PAGE = ROOT / "docs" / "scaling.md"
NAMES = {"vit_h14": "ViT-H/14", "vit_giant14": "ViT-g/14", "vit_gigantic14": "ViT-G/14"}
EXTRAS = ("ema", "gradient_clip_val", "recompute", "precision")
KINDS = ("weights", "gradients", "optimizer", "exchange")


def gib(size: int) -> str:
    return amount(size / 2**30)


def memory(content: dict[str, Any]) -> str:
    """One device of several; ddp's does not depend on their number."""
    lines = []
    fewest = min(row["devices"] for row in content["rows"])
    for row in content["rows"]:
        if row["strategy"] == "ddp" and row["devices"] > fewest:
            continue
        devices = "any, ddp" if row["strategy"] == "ddp" else f"{row['devices']}, fsdp2"
        sizes = [gib(row["bytes"][kind]) for kind in KINDS]
        images = [amount(row[f"activation_bytes{s}"] / 2**20) for s in ("", "_checkpointing")]
        batches = [f"{row[f'largest_batch{s}']:,}" for s in ("", "_checkpointing")]
        total = gib(sum(row["bytes"].values()))
        name = f"{NAMES[row['model']]}, {row['params'] / 1e6:,.0f} M"
        lines.append((name, devices, *sizes, total, *images, *batches))
    head = "model|devices|weights, GiB|gradients|moments|exchange|together|activations, MiB/image"
    head += "|checkpointed|largest batch in 80 GiB|checkpointed"
    return table(head.split("|"), lines)


def processes(content: dict[str, Any]) -> str:
    """ViT-H/14 in two processes, counted and held."""
    trained, hardware = content["trained"], content["hardware"]
    counted, held = trained["counted"], trained["processes"]
    rows = [(kind, gib(counted[kind]), *(gib(each[kind]) for each in held)) for kind in KINDS[:3]]
    rows += [(kind, gib(counted[kind]), "", "") for kind in ("exchange", "activations")]
    rows.append(("peak", gib(sum(counted.values())), *(gib(each["peak"]) for each in held)))
    text = table(("ViT-H/14, GiB", "counted", "first process", "second process"), rows)
    machine = f"{hardware['cores']} cores {hardware['cpu']}, torch {content['versions']['torch']}"
    return f"{text}\n\n" + fill(f"On {machine}, n = 1, seed 0: `{trained['command']}`", 100)


def equality(content: dict[str, Any]) -> str:
    """Differences of losses and final weights from those of one process."""
    found: dict[str, dict[tuple[str, int], str]] = {}
    for row in content["rows"]:
        name = row["optimizer"]
        name += "".join(f", {k} {row[k]}" for k in EXTRAS if k in row)
        both = f"{row['loss_difference']:.0e}, {row['weight_difference']:.0e}"
        found.setdefault(name, {})[row["strategy"], row["processes"]] = both
    kinds = [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4)]
    lines = [(name, *(values[kind] for kind in kinds)) for name, values in found.items()]
    return table(["", *(f"{strategy}, {count} processes" for strategy, count in kinds)], lines)


if __name__ == "__main__":
    content = load("results/sharded_memory")
    tables = {"memory": memory(content), "processes": processes(content)}
    page = filled(PAGE, **tables, equality=equality(load("results/sharded")))
    raise SystemExit(generate(PAGE, page))
