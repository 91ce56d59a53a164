"""Small trainings of the task dino on pictures without labels."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from PIL import Image

from tests.grouped import silent_trainer
from vit.data.settings import Loading
from vit.extensions.recipes.multi_crop import Crops
from vit.extensions.ssl.crops import DinoData
from vit.extensions.ssl.dino import Dino
from vit.extensions.ssl.settings import Heads

SIZES: dict[str, Any] = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}
HEADS = Heads(prototypes=24, hidden=32, bottleneck=8)
IMAGES = 40


def pictures(folder: Path) -> Path:
    """40 pictures of noise in one folder."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for i in range(IMAGES):
        pixels = random.integers(0, 256, (20 + i % 7, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return folder


def make_module(**options: Any) -> Dino:
    """A student of two layers for images of 16 x 16 pixels."""
    seed_everything(0, verbose=False)
    architecture = {**SIZES, **options.pop("architecture", {})}
    options = {"heads": HEADS, "image_size": 16, **options}
    return Dino.of("vit_ti16", architecture=architecture, **options)


def make_data(folder: Path, batch_size: int = 8, **options: Any) -> DinoData:
    crops, loading = Crops(local=2, local_size=8, blur=False), Loading(num_workers=0)
    shared: dict[str, Any] = {"image_size": 16, "seed": 3, "loading": loading}
    data = DinoData(
        root=str(folder), batch_size=batch_size, **{"crops": crops, **shared, **options}
    )
    return data.read_as(labelled=False)  # pyright: ignore


class Steps(Callback):
    """The module's weights before each step and after the last one."""

    def __init__(self) -> None:
        self.states: list[dict[str, torch.Tensor]] = []

    def on_train_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step == len(self.states):
            self.states.append({n: v.clone() for n, v in module.state_dict().items()})

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        self.states.append({n: v.clone() for n, v in module.state_dict().items()})


def train(
    module: Dino, data: DinoData, steps: int, *callbacks: Callback, **options: Any
) -> list[dict[str, torch.Tensor]]:
    """The weights before each step, and after the last."""
    states = Steps()
    trainer = silent_trainer(
        callbacks=[states, *callbacks], max_steps=steps, limit_val_batches=0, **options
    )
    trainer.fit(module, data)
    return states.states


def of(state: dict[str, torch.Tensor], *prefixes: str) -> dict[str, torch.Tensor]:
    """The part of a state below some names, without these."""
    return {
        name.removeprefix(prefix): value
        for prefix in prefixes
        for name, value in state.items()
        if name.startswith(prefix)
    }
