"""`vit transfer` on 19 miniatures in the layout of VTAB-1k, as a proof of the machinery.

python -m benchmarks.papers.vtab.run --out DIR [--quick]

All tasks share 1,100 gray pictures of 16 x 16 pixels, whose brightness is their label: it takes the
values 0 to 1,099 / 1,100, and a task of k classes cuts them into k equal parts. Nothing here is a
score of VTAB. Interrupted, the same command goes on. Fixed before the first run: 200 steps of 32
images at the protocol's rate of 0.01, 3 seeds.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vit
from benchmarks.lib.harness import arguments, document, publish
from vit.cli.main import main as run_vit
from vit.extensions.transfer.vtab import TASKS
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

TRAIN, TEST, SIDE = 1_000, 100, 16


def draw(root: Path, names: Iterable[str] = TASKS) -> None:
    """Writes the lists of tasks, and their pictures into `root`/images."""
    random = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    count = TRAIN + TEST
    for number in range(count):
        noise = random.normal(255 * number / count, 4, (SIDE, SIDE)).clip(0, 255)
        Image.fromarray(noise.astype(np.uint8)).save(root / "images" / f"{number}.png")
    for name in names:
        numbers, classes = random.permutation(count).tolist(), TASKS[name]["classes"]
        lines = [f"../images/{n}.png {n * classes // count}\n" for n in numbers]
        (root / name).mkdir()
        parts = {"train800": (0, 800), "val200": (800, TRAIN), "train800val200": (0, TRAIN)}
        for split, (first, last) in {**parts, "test": (TRAIN, count)}.items():
            (root / name / f"{split}.txt").write_text("".join(lines[first:last]))


def save_model(folder: Path) -> None:
    """A ViT of two layers with random weights."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"patch_size": 8, "width": 32, "depth": 2, "mlp_dim": 64}
    model = vit.create_model("vit_ti16", num_classes=0, image_size=SIDE, num_heads=2, **sizes)
    preprocess = Preprocess(image_size=(SIDE, SIDE), crop_fraction=1.0).to_dict()
    save_native(folder, model, classes=None, preprocess=preprocess, extra={})


def main() -> None:
    options = arguments(__doc__, "out").parse_args()
    if not (options.out / "model").exists():
        draw(options.out / "vtab", ("kitti",) if options.quick else TASKS)
        save_model(options.out / "model")
    steps, seeds = (2, 1) if options.quick else (200, 3)
    start = time.perf_counter()
    typed = [
        *("transfer", str(options.out / "model"), "--data", f"vtab={options.out / 'vtab'}"),
        *(f"--steps={steps}", f"--seeds={seeds}", f"--image-size={SIDE}"),
        *("--out", str(options.out / "runs"), "--", "--data.batch_size=32"),
        *("--trainer.accelerator=cpu", "--data.loading.num_workers=0"),
    ]
    status = run_vit(typed)
    if status or options.quick:
        raise SystemExit(status)
    result = json.loads((options.out / "runs" / "results.json").read_text())
    rows = [
        {key: row[key] for key in ("data", "mean", "std", "n", "scores", "images", "steps", "lr")}
        for row in result["rows"]
    ]
    facts = {
        "vtab": result["vtab"],
        "image_size": SIDE,
        "batch_size": 32,
        "seconds_of_last_call": round(time.perf_counter() - start, 1),
        "train_cpu_seconds": round(sum(row["cpu_seconds"] for row in result["rows"]), 1),
    }
    publish(document("vit transfer", rows, **facts), options, "papers/vtab/results")


if __name__ == "__main__":
    main()
