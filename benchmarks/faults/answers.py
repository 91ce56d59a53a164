"""`vit classify --out` killed again and again, and its memory over many files.

    python -m benchmarks.faults.answers [--files 20000] [--kills 5] [--quick]

Tiny JPEGs, one in twenty damaged. The command is ended by SIGKILL and SIGTERM in turn at drawn
moments and typed again until it ends by itself; then every file must have one answer, the same as
without an interruption. The peak is that of the resident memory of the command and its workers,
in proportion (PSS). Writes benchmarks/results/answers.json.
"""

import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.lib.harness import arguments, document, publish

WORKERS = 2


def make_photos(folder: Path, count: int) -> None:
    """JPEGs of 32 pixels in folders of 1,000; one in twenty is empty, a web page or cut short."""
    from PIL import Image

    draw = random.Random(0)
    for index in range(count):
        file = folder / f"{index // 1000:02}" / f"{index:05}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (32, 32), draw.randbytes(3072)).save(file)
        if index % 20 == 7:
            content = file.read_bytes()
            damaged = b"", b"<html>", content[: len(content) // 2]
            file.write_bytes(damaged[index // 20 % 3])


def save_model(folder: Path) -> None:
    """A ViT of one layer for 16 pixels with random weights."""
    import torch

    import vit
    from vit.preprocessing import Preprocess
    from vit.weights.native import save_native

    torch.manual_seed(0)
    model = vit.create_model(
        "vit_ti16", num_classes=6, image_size=16, depth=1, width=24, mlp_dim=48, num_heads=2
    )
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    steps = Preprocess(image_size=(16, 16)).to_dict()
    save_native(folder, model, classes=list("abcdef"), preprocess=steps, extra={})


def command(model: Path, photos: Path, out: Path) -> list[str]:
    words = ["classify", str(model), str(photos), "--out", str(out), "--num-workers", str(WORKERS)]
    return [sys.executable, "-m", "vit", *words]


def proportional_memory(parent: int) -> int:
    """Bytes of a process and its children; memory that they share counts once."""
    total = 0
    children = Path(f"/proc/{parent}/task/{parent}/children")
    for pid in [str(parent), *children.read_text().split()]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            total += 1024 * int(line.split()[1]) if line.startswith("Pss:") else 0
    return total


def peak_of(words: list[str]) -> int:
    """Peak bytes of the command, which must succeed."""
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, proportional_memory(process.pid))
        except (OSError, ProcessLookupError):  # a process has just ended
            pass
        time.sleep(0.2)
    assert process.returncode == 0, words
    return peak


def interrupted(words: list[str], out: Path, total: int, kills: int) -> list[dict[str, Any]]:
    """Ends the command `kills` times soon after its first block; then lets it end."""
    draw, rows = random.Random(0), []
    for turn in range(kills):
        number = (signal.SIGKILL, signal.SIGTERM)[turn % 2]
        before = lines(out)
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while process.poll() is None and lines(out) <= max(before, 1):  # the header
            time.sleep(0.05)
        time.sleep(draw.random() / 2)
        process.send_signal(number)
        rows.append({"signal": number.name, "status": process.wait(), "rows": lines(out)})
        print(rows[-1], flush=True)
        assert rows[-1]["status"], "it ended before the signal: give more --files"
    assert subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0
    return rows


def lines(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def main() -> None:
    """Kills, compares, and measures memory."""
    parser = arguments(__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    total = 1_500 if options.quick else options.files
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model")
        make_photos(folder / "photos", total)
        torn, whole, few = (folder / f"{name}.csv" for name in ("torn", "whole", "few"))
        model, photos = folder / "model", folder / "photos"
        kills = interrupted(command(model, photos, torn), torn, total, options.kills)
        peaks = {
            "1,000 files": peak_of(command(model, photos / "00", few)),
            f"{total:,} files": peak_of(command(model, photos, whole)),
        }
        rows, others = (list(csv.DictReader(file.open())) for file in (torn, whole))
        assert [row["image"] for row in rows] == sorted(map(str, photos.rglob("*.jpg")))
        for name in ("image", "class", "error"):
            assert [row[name] for row in rows] == [row[name] for row in others], name
        bad = sum(bool(row["error"]) for row in rows)
    facts = {"files": total, "unreadable": bad, "peak_bytes": peaks, "cores": os.cpu_count()}
    print(facts)
    publish(document("answers", kills, **facts), options, "results/answers")


if __name__ == "__main__":
    main()
