"""Memory of large models in shards: counted for many devices, and what two processes really hold.

python -m benchmarks.speed.sharded_memory     writes benchmarks/results/sharded_memory.json

`vit fit` trains ViT-H/14 for two steps of two images of 112 pixels, in two processes on the CPU,
which takes 13 GB of memory and up to ten minutes. Then benchmarks/speed/sharded_page.py writes
docs/scaling.md.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback
from PIL import Image

from benchmarks.lib.harness import FIT, ROOT, document, portable, save
from benchmarks.lib.pages import results_path
from vit.extensions.compute.candidate import from_config
from vit.extensions.compute.comparison import model_rows
from vit.extensions.compute.devices import held
from vit.extensions.compute.trainings import CostOptions
from vit.hardware import memory_field
from vit.models.zoo import config_from_dict
from vit.weights.building import build_empty

COUNTED = CostOptions(
    models=("vit_h14", "vit_giant14", "vit_gigantic14"), devices=(8, 64), device="h100"
)
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576"}  # freed tensors leave the process at once
STATUS = "/proc/self/status"
RUN = "-c pretrain/vit_jft --model.name vit_h14 --model.architecture.representation_size 1280"
RUN += " --data.splits.val_fraction 0.25 --data.image_size 112 --data.batch_size 1"
RUN += " --data.loading.num_workers 0"
RUN += " --trainer.accelerator cpu --trainer.precision 32-true --trainer.devices 2"
RUN += " --trainer.strategy fsdp2 --trainer.fast_dev_run 2"


class Record(Callback):
    """Writes into `folder` what its process holds after the second step."""

    def __init__(self, folder: str) -> None:
        self.folder, self.before = folder, memory_field(STATUS, "VmRSS") or 0

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM is that from here on

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        peak = (memory_field(STATUS, "VmHWM") or 0) - self.before
        parameters = list(pl_module.model.parameters())
        states = trainer.optimizers[0].state.values()
        found = {
            "model": pl_module.model.config.to_dict(),
            "weights": stored(parameters),
            "gradients": stored(p.grad for p in parameters),
            "optimizer": stored(t for s in states for t in s.values() if t.ndim),
            "peak": peak,
        }
        Path(self.folder, f"{trainer.global_rank}.json").write_text(json.dumps(found))


def stored(tensors: Iterable[Any]) -> int:
    """Bytes of the local storages, padding included, each once."""
    local = [tensor.to_local() for tensor in tensors]
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values()
    )


def trained() -> dict[str, Any]:
    """What two processes hold, beside what is counted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(16):
            (folder / "data" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(np.full((64, 64, 3), i, np.uint8))
            picture.save(folder / "data" / "ab"[i % 2] / f"{i}.png")
        callback = {
            "class_path": "benchmarks.speed.sharded_memory.Record",
            "init_args": {"folder": name},
        }
        recipe = folder / "record.yaml"
        recipe.write_text(json.dumps({"trainer": {"callbacks": [callback]}}))
        command = [*FIT, *RUN.split(), "-c", str(recipe), "--data.root", str(folder / "data")]
        command += ["--run_dir", str(folder / "run")]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **MALLOC}, check=True)
        processes = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    config = config_from_dict(processes[0]["model"])
    counted = held(build_empty(config), "fp32", "fsdp2", 2)
    activations = from_config("vit", config).activations("fp32")
    assert activations is not None
    counted["activations"] = activations.saved
    for process in processes:
        del process["model"]
    return {"command": portable(f"vit fit {RUN}"), "counted": counted, "processes": processes}


if __name__ == "__main__":
    facts = {"options": asdict(COUNTED), "trained": trained()}
    rows, _ = model_rows(COUNTED)
    content = document("vit compare --devices, and vit fit with fsdp2", rows, **facts)
    save(content, results_path("results/sharded_memory"))
    print(json.dumps(content["trained"]))
