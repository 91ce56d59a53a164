"""CPU seconds of short commands, each in a separate process, measured alternately.

    python -m benchmarks.speed.startup [--rounds 5] [--quick]

`vit --help`, `vit fit --help`, `vit classify` of one photo with a ViT-Ti/16 and `vit fit` on 30
photos up to its first step, compared with importing torch, torchvision and lightning, the help of a
trivial LightningCLI, and the same classification with timm. Modules are read from their compiled
files, as after an installation.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.lib.harness import Rows, arguments, document, publish, results_name, timed

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
import os, runpy, sys, vit
vit.ImageClassifier.training_step = lambda *_: os._exit(0)
runpy.run_module("vit", run_name="__main__")
sys.exit("no step was taken")
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
        "the same with timm": [
            *python,
            "-c",
            TIMM,
            str(folder / "timm" / "model.safetensors"),
            photo,
        ],
        "import torchvision": [*python, "-c", "import torchvision"],
        "import lightning": [*python, "-c", "import lightning"],
        "vit fit, up to its first step": [
            *(*python, "-c", FIRST_STEP, "fit", "-c", "quickstart"),
            *("--data.root", str(folder / "photos"), "--data.loading.num_workers", "0"),
            *("--run_dir", str(folder / "run")),
        ],
        "LightningCLI --help": [*python, "-c", LIGHTNING, "--help"],
    }


def random_weights(folder: Path, name: str, architecture: str, patch: int = 16) -> None:
    """FOLDER/model and, in timm's layout, FOLDER/timm: a model by its names here and there, with
    patches of so many pixels."""
    import torch
    from safetensors.torch import save_file

    import vit

    model = vit.create_model(name, patch_size=patch)
    torch.nn.init.normal_(model.get_submodule("head").weight)  # one of zeros names nothing
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    (folder / "timm").mkdir()
    save_file(state, folder / "timm" / "model.safetensors", {"format": "pt"})
    classes = [f"class {i}" for i in range(1000)]
    sizes = {"input_size": [3, 224, 224], "crop_pct": 0.875, "interpolation": "bicubic"}
    sizes |= {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "num_classes": 1000}
    description = {"architecture": architecture, "label_names": classes}
    description |= {
        "num_classes": 1000,
        "pretrained_cfg": sizes,
        "model_args": {"patch_size": patch},
    }
    (folder / "timm" / "config.json").write_text(json.dumps(description))
    convert = [sys.executable, "-m", "vit", "convert", folder / "timm", folder / "model"]
    subprocess.run([*convert, "--to", "native"], check=True, capture_output=True)


def prepare(folder: Path) -> None:
    """A model with random weights, also in timm's layout, and a 500 x 375 photo of noise."""
    import torch
    from PIL import Image

    random_weights(folder, "vit_ti16", "vit_tiny_patch16_224")
    coarse = torch.randint(0, 256, (38, 50, 3), dtype=torch.uint8).numpy()
    photo = Image.fromarray(coarse).resize((500, 375))
    photo.save(folder / "photo.jpg", quality=90)
    for number in range(30):
        file = folder / "photos" / "abc"[number % 3] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo.save(file)


def main() -> None:
    """Measures alternately, prints a table and the JSON."""
    options = arguments(__doc__, rounds=5).parse_args()
    rounds = 1 if options.quick else options.rounds
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        commands = cases(folder)
        samples: dict[str, list[tuple[float, float]]] = {case: [] for case in commands}
        for turn in range(rounds + 1):
            for case, command in commands.items():
                _, times = timed(command, env=environment)
                if turn:  # the first turn reads the files from disk
                    samples[case].append((times["cpu_seconds"], times["seconds"]))
    rows: Rows = []
    for case, times in samples.items():
        used = [cpu for cpu, _ in times]
        above = [cpu - base for cpu, (base, _) in zip(used, samples["import torch"], strict=True)]
        rows.append(
            {
                "command": case,
                "cpu_seconds": statistics.median(used),
                "min": min(used),
                "max": max(used),
                "seconds": statistics.median(passed for _, passed in times),
                "above_import_torch": statistics.median(above),
            }
        )
        line = (
            "{command:36} {cpu_seconds:6.2f} s CPU  {above_import_torch:+6.2f} above import torch"
        )
        print(line.format(**rows[-1]))
    publish(document("startup", rows, runs=rounds), options, results_name("startup"))


if __name__ == "__main__":
    main()
