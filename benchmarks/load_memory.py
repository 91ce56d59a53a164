"""Time and peak memory of loading a large model from a safetensors file, compared with timm.

    python benchmarks/load_memory.py [--model vit_h14] [--runs 3] [--quick]

Every load is a separate process that first imports everything, then measures the peak resident size
(VmHWM) of loading above its memory before. Touched pages of a memory-mapped file count, although
the system can reclaim them. The packages alternate. A second figure includes reading every weight
once, so that the whole file is read. The last line of output is one JSON document.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Writing to clear_refs resets VmHWM, so that imports do not count.
PEAK = """
import json, sys, time
def field(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) * 1024
def measured(load):
    open("/proc/self/clear_refs", "w").write("5")
    before, start = field("VmRSS"), time.perf_counter()
    model = load()
    loaded = time.perf_counter() - start
    after_load = field("VmHWM")
    total = sum(parameter.sum().item() for parameter in model.parameters())
    print(json.dumps({
        "seconds": loaded, "seconds_touched": time.perf_counter() - start,
        "extra_bytes": after_load - before, "extra_bytes_touched": field("VmHWM") - before,
        "finite": total == total,
    }))
"""
OURS = """
import torch
from vit.checkpoints.native import load_native
from vit.checkpoints.pretrained import load_pretrained
measured(lambda: LOAD)
"""
TIMM = """
import timm, torch
measured(lambda: timm.create_model("local-dir:" + sys.argv[1], pretrained=True))
"""
CASES = {
    "vit, native": PEAK + OURS.replace("LOAD", "load_native(sys.argv[1])[0]"),
    "vit, timm file": PEAK + OURS.replace("LOAD", "load_pretrained(sys.argv[1])[0]"),
    "timm, timm file": PEAK + TIMM,
}


def measure(code: str, path: Path) -> dict[str, float]:
    """One load in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Writes the files, measures the cases alternately, prints a table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_h14")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small model, one run")
    args = parser.parse_args()
    name, runs = ("vit_ti16", 1) if args.quick else (args.model, args.runs)

    import torch

    from vit.checkpoints.convert import convert
    from vit.checkpoints.native import save_native
    from vit.checkpoints.pretrained import create_model

    with tempfile.TemporaryDirectory() as folder:
        native, foreign = Path(folder, "native"), Path(folder, "timm")
        model = create_model(name, activation="gelu")
        save_native(native, model, classes=None, preprocess=None, extra={})
        del model
        convert(native, foreign, "timm")
        size = (native / "model.safetensors").stat().st_size
        results: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
        for _ in range(runs):
            for case, code in CASES.items():
                path = native if "native" in case else foreign
                results[case].append(measure(code, path))
    summary = {}
    print(f"{name}: {size / 1e9:.2f} GB")
    for case, rows in results.items():
        median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        summary[case] = median | {
            "peak_over_file": median["extra_bytes"] / size,
            "peak_over_file_touched": median["extra_bytes_touched"] / size,
        }
        shown = summary[case]
        print(
            f"{case:16} load {shown['seconds']:6.2f} s, peak {shown['peak_over_file']:.2f} x file; "
            f"and every weight read {shown['seconds_touched']:6.2f} s, "
            f"{shown['peak_over_file_touched']:.2f} x"
        )
    document = {
        "what": "load_memory",
        "model": name,
        "file_bytes": size,
        "runs": runs,
        "torch": torch.__version__,
        "machine": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
        "results": summary,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
