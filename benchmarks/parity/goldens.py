"""Digests of what ten runs leave behind, to show that a change of structure changes no bit.

    python -m benchmarks.parity.goldens --at REVISION   # by that revision's code and by this one's
    python -m benchmarks.parity.goldens --record        # each run twice; results/goldens.json

Bits depend on the processor and on PyTorch: `--at` runs both on this machine, and recorded digests
are compared only where processor and versions are those of the record. One thread computes.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "results" / "goldens.json"
DIGITS, SIDE = 60, 24
"""Images of each class, and their pixels, large enough for 3 x 3 patches of 8."""
SMALL = (
    "--model.architecture={patch_size: 8, width: 32, depth: 2, mlp_dim: 64, num_heads: 2}",
    f"--data.image_size={SIDE}",
    "--data.batch_size=16",
    "--data.loading.num_workers=0",
    "--trainer.precision=32-true",
)
PLAIN = ("-c", "cifar10/plain", "--data.root")
START = (*PLAIN, "two", *SMALL, "--steps", "30", "--run_dir", "start")
"""The run whose weights the others start from."""
FROM = ("--data.batch_size=16", "--data.loading.num_workers=0", "--trainer.precision=32-true")
FROM += ("--pretrained", "start", "--data.image_size", str(SIDE))
RUNS: dict[str, tuple[str, ...]] = {
    "quickstart": ("-c", "quickstart", "--epochs", "4"),
    "cifar10": ("-c", "cifar10", "--data.root", "ten", "--steps", "30", "--data.batch_size=32"),
    "finetune": ("-c", "finetune", "--data.root", "ten", "--steps", "20", *FROM),
    "finetune_val": (
        "-c", "finetune", "--data.root", "ten", "--steps", "20", *FROM,
        "--data.splits.val_fraction", "0.2", "--trainer.val_check_interval", "10",
    ),
    "lora": ("-c", "lora", "--data.root", "ten", "--steps", "20", *FROM),
    "probe": ("-c", "probe", "--data.root", "ten", *FROM),
    "mae": (
        "-c", "pretrain/mae_cifar10", "--data.root", "ten", *SMALL, "--steps", "20",
        "--model.decoder_width=16", "--model.decoder_depth=1", "--model.decoder_heads=2",
    ),
    "several_labels": (*PLAIN, "several.csv", *SMALL, "--steps", "20"),
    "shards": (*PLAIN, "shards", *SMALL, "--steps", "20"),
    "resumed": (*PLAIN, "two", *SMALL, "--epochs", "6"),
}  # fmt: skip
"""Options of `vit fit`; "resumed" is stopped after its best epoch so far, and continued."""
QUICK = ("resumed",)
VARYING = re.compile(r"second|version|hardware|command|memory|date|digest|finishers|headline")
"""Entries of summary.json, and columns of metrics.csv, that differ from run to run, or that earlier
revisions lack."""
PLACES = re.compile(r"\bvit(?:\.\w+)+\.(\w+)")
FILES = ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "model/model.safetensors")
FILES += ("model/config.json", "predictions.csv", "metrics.csv", "summary.json")


def make_images(folder: Path) -> None:
    """Digits of scikit-learn as PNG: `two` and `ten` class folders, a list of several labels."""
    digits = load_digits()
    rows = []
    for label in range(10):
        for number, place in enumerate(np.flatnonzero(digits.target == label)[:DIGITS]):
            pixels = (digits.images[place] * 15.9).astype("uint8")
            image = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            for root in ("two", "ten") if label < 2 else ("ten",):
                path = folder / root / f"digit {label}" / f"{number:03}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.convert("RGB").save(path)
            parity = "even" if label % 2 == 0 else "odd"
            rows.append(
                (
                    f"ten/digit {label}/{number:03}.png",
                    f"{parity}|{'small' if label < 5 else 'large'}",
                )
            )
    with (folder / "several.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("path", "label"), *rows])


def run_all(code: Path, folder: Path, names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Digests of the files of each run, by the code in a checkout; runs in an empty folder."""
    variables = {**os.environ, "PYTHONPATH": str(code), "CUDA_VISIBLE_DEVICES": ""}
    variables |= {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}

    def vit(*words: str, status: int = 0) -> None:
        command = [sys.executable, "-m", "vit", *words]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
        if done.returncode != status:
            raise SystemExit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr[-2000:]}")

    folder.mkdir(parents=True)
    make_images(folder)
    vit("fit", *START)
    vit("data", "pack", "ten", "shards")
    digests = {}
    for name in names:
        words = ("fit", *RUNS[name], "--run_dir", f"runs/{name}")
        if name == "resumed":
            _stopped(words, folder, variables)
        vit(*words)
        digests[name] = digests_of(folder / "runs" / name)
        print(f"{name}: {len(digests[name])} files", flush=True)
    return digests


def _stopped(words: tuple[str, ...], folder: Path, variables: Mapping[str, str]) -> None:
    """Runs a fit that stops itself, by a signal, in the third step of its fifth epoch."""
    hook = (
        "import os, signal\n"
        "from lightning.pytorch.callbacks import Callback\n"
        "class Stop(Callback):\n"
        "    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):\n"
        "        if trainer.current_epoch == 4 and batch_idx == 2:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "from vit.runs import fit\n"
        "build = fit.build_trainer\n"
        "def stopping(**options):\n"
        "    options['callbacks'].insert(0, Stop())\n"
        "    return build(**options)\n"
        "fit.build_trainer = stopping\n"
        "from vit.cli.main import entry\n"
        "entry()\n"
    )
    command = [sys.executable, "-c", hook, *words]
    done = subprocess.run(command, cwd=folder, env=dict(variables), capture_output=True, text=True)
    if done.returncode != 128 + signal.SIGTERM:
        raise SystemExit(f"the stop: status {done.returncode}\n{done.stderr[-2000:]}")


def digests_of(run: Path) -> dict[str, str]:
    """File -> SHA-256 of what may not change in it."""
    readers: dict[str, Callable[[Path], Iterator[bytes]]] = {
        ".ckpt": lambda path: parts(torch.load(path, weights_only=True)),
        ".safetensors": lambda path: _tensors(path),
        ".json": lambda path: parts(json.loads(path.read_text())),
        ".csv": _table,
    }
    digests = {}
    for name in FILES:
        if (path := run / name).is_file():
            digest = hashlib.sha256()
            for part in readers[path.suffix](path):
                digest.update(part)
            digests[name] = digest.hexdigest()
    return digests


def _tensors(path: Path) -> Iterator[bytes]:
    from safetensors.torch import load_file

    return parts(load_file(path))


def _table(path: Path) -> Iterator[bytes]:
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            yield from parts(row)


def parts(value: Any) -> Iterator[bytes]:
    """A nested value as bytes, without entries that vary and without the modules of classes."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            if not VARYING.search(str(key)):
                yield from parts(key)
                yield from parts(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from parts(item)
            yield b","
    elif isinstance(value, torch.Tensor):
        whole = value.detach().contiguous()
        yield f"{whole.dtype} {tuple(whole.shape)} ".encode()
        yield whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""
    elif not (isinstance(value, str) and os.path.isabs(value)):  # a folder of this run
        yield f"{_public(repr(value))};".encode()


def _public(text: str) -> str:
    """The text with vit.NAME for a class, whatever its module."""
    return PLACES.sub(r"vit.\1", text)


def machine() -> dict[str, str]:
    """What bits depend on."""
    from vit.hardware import cpu_features, cpu_name

    processor = cpu_name() + cpu_features()
    return {"processor": processor, "torch": torch.__version__, "numpy": np.__version__}


def differing(a: dict[str, dict[str, str]], b: dict[str, dict[str, str]]) -> list[str]:
    """RUN/FILE for each file whose digests differ, or that one side lacks."""
    pairs = [(run, file) for run in a for file in {*a[run], *b.get(run, {})}]
    return sorted(
        f"{run}/{file}" for run, file in pairs if a[run].get(file) != b.get(run, {}).get(file)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} alone")
    parser.add_argument("--at", metavar="REVISION", help="compare with the code of a revision")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    options = parser.parse_args()
    names = QUICK if options.quick else tuple(RUNS)
    with tempfile.TemporaryDirectory(prefix="goldens_") as place:
        here = run_all(ROOT, Path(place) / "a", names)
        recorded = json.loads(RECORD.read_text()) if RECORD.is_file() else None
        if options.at:
            code = Path(place) / "code"
            subprocess.run(
                ["git", "worktree", "add", "--detach", str(code), options.at],
                cwd=ROOT, check=True, capture_output=True,
            )  # fmt: skip
            try:
                other = run_all(code, Path(place) / "b", names)
            finally:
                shutil.rmtree(code)
                subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        elif not options.record and recorded and recorded["machine"] == machine():
            other = {name: recorded["runs"][name] for name in names}
        else:  # of another machine: that a run repeats itself
            other = run_all(ROOT, Path(place) / "b", names)
    different = differing(here, other)
    if options.record and not different:
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
        RECORD.write_text(
            json.dumps({"commit": commit, "machine": machine(), "runs": here}, indent=1) + "\n"
        )
    print("\n".join(different) or f"{len(names)} runs: equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
