"""Rows of `vit compare` and `vit bench` as aligned text."""

from collections.abc import Callable, Sequence
from typing import Any

from vit.extensions.compute.memory import GIB

LEFT = ("model", "training", "precision", "verdict")
"""Columns of text."""
Row = dict[str, Any]
Cell = Callable[[Row], str | None]


def model_table(rows: Sequence[Row]) -> str:
    """Models at image sizes: their operations, or the memory of one of several devices."""
    cost: list[tuple[str, str, Cell]] = [
        ("params", "M", lambda row: amount(row["params"] / 1e6)),
        ("multiply-adds", "G/image", lambda row: amount(row["macs"] / 1e9)),
        ("forward", "GFLOP/image", lambda row: amount(row["flops"] / 1e9)),
        ("training step", "GFLOP/image", lambda row: amount(row["training_flops"] / 1e9)),
    ]
    if "devices" in rows[0]:
        cost = [("devices", "", lambda row: f"{row['devices']} {row['strategy']}")]
        for kind in rows[0]["bytes"]:
            cost.append((kind, "GiB", lambda row, kind=kind: amount(row["bytes"][kind] / GIB)))
    return _table(
        [
            ("model", "", lambda row: row["model"]),
            ("image", "px", _pixels),
            *cost,
            ("activations", "MiB/image", _scaled("activation_bytes", 2**20)),
            ("checkpointed", "MiB/image", _scaled("activation_bytes_checkpointing", 2**20)),
            ("largest batch", "images", _whole("largest_batch")),
            ("checkpointed", "images", _whole("largest_batch_checkpointing")),
        ],
        rows,
    )


def training_table(rows: Sequence[Row]) -> str:
    """Whole trainings and runs."""
    return _table(
        [
            ("training", "", _label),
            ("model", "", lambda r: r.get("paper_name", r["model"])),
            # Equal for all of Table 6, and stated in the notes.
            ("image", "px", lambda r: None if "paper_name" in r else _pixels(r)),
            ("params", "M", lambda r: amount(r["params"] / 1e6)),
            ("forward", "GFLOP/image", lambda r: amount(r["flops"] / 1e9)),
            ("epochs", "", lambda r: None if r["epochs"] is None else f"{r['epochs']:g}"),
            ("images", "M", lambda r: None if "paper_name" in r else amount(r["images"] / 1e6)),
            ("compute", "exaFLOPs", lambda r: amount(r["exaflops"])),
            ("paper", "exaFLOPs", _whole("paper_exaflops")),
            ("ours/paper", "", lambda r: f"{r['ratio']:.3f}" if "ratio" in r else None),
            ("accuracy", "%", _scaled("accuracy", 1)),
            ("of", "", lambda r: r.get("split") or None),
            ("time", "device-days", _scaled("device_days", 1)),
            ("price", "", _scaled("cost", 1)),
            ("held", "GiB", _scaled("held_bytes", GIB)),
            ("activations", "MiB/image", _scaled("activation_bytes", 2**20)),
            ("largest batch", "images", _whole("largest_batch")),
        ],
        rows,
    )


def export_table(rows: Sequence[Row]) -> str:
    """Candidates of `vit export --at`."""
    return _table(
        [
            ("precision", "", lambda row: row["precision"]),
            ("size", "pixels", _pixels),
            ("median (range)", "ms", lambda row: _ranged(row["median_ms"], row["range_ms"])),
            ("accuracy", "%", lambda row: f"{100 * row['accuracy']:.2f}"),
            ("lost (95 %)", "points", _lost),
            ("verdict", "", lambda row: row["verdict"]),
        ],
        rows,
    )


def _lost(row: Row) -> str | None:
    """None for the model itself."""
    low, high = row["interval"]
    return None if low == high else f"{row['drop']:.2f} ({low:.2f} to {high:.2f})"


def _ranged(middle: float, ends: Sequence[float]) -> str:
    return f"{middle:.1f} ({ends[0]:.1f}-{ends[1]:.1f})"


def amount(value: float) -> str:
    """Three digits below 1, otherwise four or all integer digits: 0.164, 4.409, 17.56, 4,256."""
    if value < 1:
        return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.2e}"
    places = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:,.{places}f}"


def _label(row: Row) -> str | None:
    """The run or recipe; None for a row of Table 6, which its model identifies."""
    return row.get("run") or (None if "paper_name" in row else row["recipe"])


def _pixels(row: Row) -> str:
    height, width = row["image_size"]
    return f"{height}" if height == width else f"{height}x{width}"


def _scaled(key: str, unit: float) -> Cell:
    return lambda row: None if row.get(key) is None else amount(row[key] / unit)


def _whole(key: str) -> Cell:
    return lambda row: None if row.get(key) is None else f"{row[key]:,}"


def _table(columns: Sequence[tuple[str, str, Cell]], rows: Sequence[Row]) -> str:
    """Aligned columns: text left, numbers right. Columns without values are dropped."""
    filled = []
    for name, unit, cell in columns:
        cells = [cell(row) for row in rows]
        if any(cell is not None for cell in cells):
            filled.append([name, unit, *("-" if cell is None else cell for cell in cells)])
    widths = [max(map(len, column)) for column in filled]
    lines = []
    for i in range(len(rows) + 2):
        cells = [
            column[i].ljust(width) if column[0] in LEFT else column[i].rjust(width)
            for column, width in zip(filled, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def bench_table(reports: Sequence[Row]) -> str:
    """Rates of all models of `vit bench`, their peaks, and the best settings."""
    first, several = reports[0], len(reports) > 1
    machine = first["device"]
    if machine == "cpu":
        count, facts = first["threads"], first["hardware"]
        machine = f"{count} thread{'s' if count > 1 else ''}, {facts['cores']} cores {facts['cpu']}"
    names = [f"{report['model']}, {_pixels(report)} pixels" for report in reports]
    subject = f"{len(reports)} models in turns" if several else names[0]
    rows = [
        {"name": name, **row}
        for name, report in zip(names, reports, strict=True)
        for row in report["rows"]
    ]
    table = _table(
        [
            ("model", "", lambda row: row["name"] if several else None),
            ("precision", "", _way),
            ("batch", "images", _whole("batch_size")),
            ("rate", "images/s", lambda row: f"{row['images_per_second']:.2f}"),
            ("batch", "ms", lambda row: f"{row['milliseconds_per_batch']:.1f}"),
            ("spread", "±", lambda row: f"{row['spread']:.0%}"),
            ("of limit", "", lambda row: f"{row['utilisation']:.0%}"),
        ],
        rows,
    )
    lines = [f"{subject}, {first['what']}, on {machine}", "", table]
    for name, report in zip(names, reports, strict=True):
        lines += ["", *([f"{name}:"] if several else []), *_bench_advice(report)]
    return "\n".join(lines)


def _way(row: Row) -> str:
    return row["precision"] + (f" compiled ({row['compile']})" if row["compile"] else "")


def _bench_advice(report: Row) -> list[str]:
    """The peaks of a model, its best precision and batch, and `vit fit`'s options for them."""
    limits, best = report["limit_flops_per_second"].items(), report["suggestion"]
    lines = [
        "limit, GFLOP/s: " + ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in limits),
        f"best here: {_way(best)} with batches of {best['batch_size']}, "
        f"{best['images_per_second']:.2f} images/s",
    ]
    if any(row["utilisation"] > 1 for row in report["rows"]):
        lines.append("above 100 % of the limit: the machine was busy meanwhile; run again")
    if report["what"] == "training step":
        trainer = "bf16-mixed" if best["precision"] == "bf16" else "32-true"
        lines.append(
            f"vit fit ... --trainer.precision {trainer} --data.batch_size {best['batch_size']}"
            + " --model.compile true" * bool(best["compile"])
        )
    return lines
