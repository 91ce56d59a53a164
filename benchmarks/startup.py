"""CPU seconds of short commands, each in a separate process, measured alternately.

    python benchmarks/startup.py [--runs 5] [--quick]

`vit --help`, `vit fit --help`, `vit classify` of one photo with a ViT-Ti/16 and `vit fit` on 30
photos up to its first step, compared with importing torch, torchvision and lightning, the help of a
trivial LightningCLI, and the same classification with timm. Modules are read from their compiled
files, as after an installation. Writes benchmarks/results/startup_<machine>.json; the last line of
output is the JSON.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from collect import document, results_file, write

LIGHTNING = """
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel
LightningCLI(DemoModel, BoringDataModule)
"""
TIMM = """
import sys, timm, torch
from PIL import Image
model = timm.create_model("vit_tiny_patch16_224", checkpoint_path=sys.argv[1]).eval()
data = timm.data.resolve_model_data_config(model)
image = timm.data.create_transform(**data)(Image.open(sys.argv[2]).convert("RGB"))
with torch.inference_mode():
    print(model(image[None]).softmax(-1).topk(5))
"""

FIRST_STEP = """
import os, sys
from vit.cli.main import main
from vit.training.classifier import ImageClassifier
ImageClassifier.training_step = lambda *_: os._exit(0)
sys.exit(main(sys.argv[1:]) or "no step was taken")
"""


def cases(folder: Path) -> dict[str, list[str]]:
    """Commands by their names in the table."""
    python, vit = [sys.executable, "-W", "ignore"], [sys.executable, "-m", "vit"]
    photo = str(folder / "photo.jpg")
    return {
        "python, nothing else": [*python, "-c", "pass"],
        "vit --help": [*vit, "--help"],
        "vit fit --help": [*vit, "fit", "--help"],
        "import torch": [*python, "-c", "import torch"],
        "vit classify, one photo, ViT-Ti/16": [*vit, "classify", str(folder / "model"), photo],
        "the same with timm": [*python, "-c", TIMM, str(folder / "timm.safetensors"), photo],
        "import torchvision": [*python, "-c", "import torchvision"],
        "import lightning": [*python, "-c", "import lightning"],
        "vit fit, up to its first step": [
            *(*python, "-c", FIRST_STEP, "fit", "-c", "quickstart"),
            *("--data.root", str(folder / "photos"), "--data.loading.num_workers", "0"),
            *("--run_dir", str(folder / "run")),
        ],
        "LightningCLI --help": [*python, "-c", LIGHTNING, "--help"],
    }


def prepare(folder: Path) -> None:
    """A model with random weights, also in timm's layout, and a 500 x 375 photo of noise."""
    import torch
    from PIL import Image

    from vit.checkpoints.native import save_native
    from vit.checkpoints.pretrained import create_model
    from vit.checkpoints.writing import write_safetensors
    from vit.preprocessing import Preprocess

    model = create_model("vit_ti16")
    torch.nn.init.normal_(model.head.weight)  # one of zeros names nothing
    preprocess = Preprocess(image_size=(224, 224), crop_fraction=0.875).to_dict()
    classes = [f"class {i}" for i in range(1000)]
    save_native(folder / "model", model, classes=classes, preprocess=preprocess, extra={})
    write_safetensors(folder / "timm.safetensors", model.state_dict(), {"format": "pt"})
    coarse = torch.randint(0, 256, (38, 50, 3), dtype=torch.uint8).numpy()
    photo = Image.fromarray(coarse).resize((500, 375))
    photo.save(folder / "photo.jpg", quality=90)
    for number in range(30):
        file = folder / "photos" / "abc"[number % 3] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo.save(file)


def measure(command: list[str]) -> tuple[float, float]:
    """CPU seconds (user and system) and wall-clock seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{command} has failed:\n{done.stderr[-2000:]}")
    passed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, passed


def main() -> None:
    """Measures alternately, prints a table and the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run, no file written")
    options = parser.parse_args()
    runs = 1 if options.quick else options.runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        commands = cases(folder)
        samples: dict[str, list[tuple[float, float]]] = {case: [] for case in commands}
        for turn in range(runs + 1):
            for case, command in commands.items():
                times = measure(command)
                if turn:  # the first turn reads the files from disk
                    samples[case].append(times)
    rows: list[dict[str, Any]] = []
    torch_seconds = [used for used, _ in samples["import torch"]]
    for case, times in samples.items():
        used = [u for u, _ in times]
        above = statistics.median(a - b for a, b in zip(used, torch_seconds, strict=True))
        rows.append(
            {
                "command": case,
                "cpu_seconds": statistics.median(used),
                "min": min(used),
                "max": max(used),
                "seconds": statistics.median(passed for _, passed in times),
                "above_import_torch": above,
            }
        )
        print(f"{case:36} {statistics.median(used):6.2f} s CPU  {above:+6.2f} above import torch")

    measured = document("startup", rows, runs=runs)
    write(measured, None if options.quick else results_file("startup"))
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
