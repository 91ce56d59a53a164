"""Rows of `vit compare` and `vit bench` as aligned text."""

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
Cell = Callable[[Row], str | None]


def model_table(rows: Sequence[Row]) -> str:
    """Models at image sizes, followed by their measurements, if any."""
    named: list[tuple[str, str, Cell]] = [
        ("model", "", lambda row: row["model"]),
        ("image", "px", _pixels),
    ]
    costs = _table(
        [
            *named,
            ("params", "M", lambda row: amount(row["params"] / 1e6)),
            ("multiply-adds", "G/image", lambda row: amount(row["macs"] / 1e9)),
            ("forward", "GFLOP/image", lambda row: amount(row["flops"] / 1e9)),
            ("training step", "GFLOP/image", lambda row: amount(row["training_flops"] / 1e9)),
            ("counter: forward", "GFLOP/image", _scaled("counted_flops", 1e9)),
            ("training step", "GFLOP/image", _scaled("counted_training_flops", 1e9)),
            ("activations", "MiB/image", _scaled("activation_bytes", 2**20)),
            ("checkpointed", "MiB/image", _scaled("activation_bytes_checkpointing", 2**20)),
            ("largest batch", "images", _whole("largest_batch")),
            ("checkpointed", "images", _whole("largest_batch_checkpointing")),
        ],
        rows,
    )
    if not any("measured_on" in row for row in rows):
        return costs
    measured: list[tuple[str, str, Cell]] = [
        ("activations", "MiB/image", _scaled("measured_activation_bytes", 2**20)),
        ("peak", "GiB", _scaled("measured_peak_bytes", 2**30)),
        ("largest batch", "images", _whole("largest_batch_found")),
    ]
    return costs + "\n\nmeasured\n" + _table([*named, *_MEASURED, *measured], rows)


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
            ("ours/paper", "", _ratio("ratio")),
            ("without padding", "exaFLOPs", _scaled("exaflops_without_padding", 1)),
            ("ours/paper", "", _ratio("ratio_without_padding")),
            ("accuracy", "%", _accuracy),
            *_MEASURED,
            ("time", "device-days", _scaled("device_days", 1)),
            ("price", "", _scaled("cost", 1)),
        ],
        rows,
    )


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


def _ratio(key: str) -> Cell:
    return lambda row: None if row.get(key) is None else f"{row[key]:.3f}"


def _accuracy(row: Row) -> str | None:
    if row.get("accuracy") is None:
        return None
    return f"{row['accuracy']:.2f} {row['split']}"


def _rate(key: str) -> Cell:
    def cell(row: Row) -> str | None:
        if key not in row:
            return None
        rate = row[key]
        spread = (rate["max"] - rate["min"]) / 2 / rate["median"]
        return f"{amount(rate['median'])} ±{100 * spread:.0f}%"

    return cell


def _used(row: Row) -> str | None:
    return None if row.get("utilisation") is None else f"{100 * row['utilisation']:.0f}"


_MEASURED: list[tuple[str, str, Cell]] = [
    ("inference", "images/s", _rate("inference_images_per_second")),
    ("training", "images/s", _rate("training_images_per_second")),
    ("speed", "TFLOP/s", _scaled("flops_per_second", 1e12)),
    ("of peak", "%", _used),
]


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
            column[i].ljust(width) if column[0] in ("model", "training") else column[i].rjust(width)
            for column, width in zip(filled, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def bench_table(reports: Sequence[Row]) -> str:
    """Results of `vit bench`: a table of all models, their peaks, and the best settings."""
    first, several = reports[0], len(reports) > 1
    machine = first["device"]
    if machine == "cpu":
        count, facts = first["threads"], first["hardware"]
        machine = f"{count} thread{'s' if count > 1 else ''}, {facts['cores']} cores {facts['cpu']}"
    names = [_sized_name(report) for report in reports]
    width = max(map(len, names)) + 2 if several else 0
    subject = f"{len(reports)} models in turns" if several else names[0]
    lines = [
        f"{subject}, {first['what']}, on {machine}",
        "",
        f"{'model' if several else '':{width}}{'precision':28} {'batch':>5} {'images/s':>10} "
        f"{'ms/batch':>10} {'±':>5} {'of limit':>9}",
    ]
    for name, report in zip(names, reports, strict=True):
        for row in report["rows"]:
            way = row["precision"] + (f", compiled ({row['compile']})" if row["compile"] else "")
            lines.append(
                f"{name if several else '':{width}}{way:28} {row['batch_size']:5} "
                f"{row['images_per_second']:10.2f} {row['milliseconds_per_batch']:10.1f} "
                f"{row['spread']:5.0%} {row['utilisation']:9.0%}"
            )
    for name, report in zip(names, reports, strict=True):
        lines += ["", *([f"{name}:"] if several else []), *_bench_advice(report)]
    return "\n".join(lines)


def _sized_name(report: Row) -> str:
    return f"{report['model']}, {'x'.join(map(str, report['image_size']))} pixels"


def _bench_advice(report: Row) -> list[str]:
    """The peaks of a model, its best precision and batch, and `vit fit`'s options for them."""
    limits, best = report["limit_flops_per_second"].items(), report["suggestion"]
    name = best["precision"] + (f" compiled ({best['compile']})" if best["compile"] else "")
    lines = [
        "limit, GFLOP/s: " + ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in limits),
        f"best here: {name} with batches of {best['batch_size']}, "
        f"{best['images_per_second']:.2f} images/s",
    ]
    if report["what"] == "training step":
        trainer = "bf16-mixed" if best["precision"] == "bf16" else "32-true"
        lines.append(
            f"vit fit ... --trainer.precision {trainer} --data.batch_size {best['batch_size']}"
        )
    return lines
