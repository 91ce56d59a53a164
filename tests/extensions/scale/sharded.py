"""Trainings that test_sharding.py compares: by one process, and with fsdp2 by several.

Each process writes FOLDER/PROCESSES.CASE.RANK for its cases in TRAINED.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import Callback

from tests.processes import together
from tests.training.pairs import SIZES, make_data, make_trainer
from vit.extensions.adaptation.distillation import Distillation
from vit.extensions.pretraining.autoregressive import Autoregressive
from vit.extensions.pretraining.masked_autoencoder import MaskedAutoencoder
from vit.extensions.recipes.ema import EMA
from vit.extensions.recipes.foreach import LAMB, SGDW
from vit.extensions.scale.sharding import ShardedStrategy
from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.callbacks.linear_probe import LinearProbe
from vit.training.image_classifier import ImageClassifier
from vit.training.losses import Loss
from vit.training.mixing import Mixing
from vit.training.optimizers import muon
from vit.training.optimizers.muon import MuonWithAdamW
from vit.training.parts import full, local

STEPS = 8
# Large values of eps: rounding errors of gradients that are zero must not become steps.
CASES: dict[str, Callable[[Any], Any]] = {
    "aim": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "averaged": lambda params: torch.optim.AdamW(params, lr=1e-2, eps=1e-3, fused=True),
    "bf16": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "distilled": lambda params: SGDW(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "head": lambda params: torch.optim.AdamW(params, lr=1e-4, eps=1e-3),
    "lamb": lambda params: LAMB(params, lr=1e-2, eps=1e-3, weight_decay=0.1),
    "mae": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "muon": lambda params: MuonWithAdamW(params, lr=0.01, adamw_lr=0.01),
}
"""The optimizer of each; the first has an average, clipped gradients and recomputed layers."""
TRAINED = {2: tuple(CASES), 4: ("averaged",)}
"""Cases by number of processes."""
SMALL = {"mask_ratio": 0.5, "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
UNLABELLED = {
    "mae": partial(MaskedAutoencoder.of, **SMALL),
    "aim": partial(Autoregressive.of, head_width=16, head_depth=1),
}


class Record(Callback):
    """Losses of this process, and its numbers and all, of weights and of what goes with them."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.held: list[tuple[int, int]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(outputs["loss"].item())
        if len(self.losses) == STEPS:
            tensors = [*module.parameters()]
            for state in trainer.optimizers[0].state.values():
                tensors += [t for t in state.values() if t.dim()]
            for callback in trainer.callbacks:
                if isinstance(callback, EMA):
                    assert callback._average_model is not None
                    tensors += callback._average_model.module.parameters()
            self.held = [(local(t.detach()).numel(), t.numel()) for t in tensors]


def make_module(case: str, other: str, same: str) -> Any:
    seed_everything(0, verbose=False)
    muon.has_bfloat16 = lambda: False  # whose rounding is as large as the differences of interest
    optimizer = CASES[case]
    sizes = {**SIZES, "drop_path": 0.3, "recompute": case == "averaged"}
    if case in UNLABELLED:
        patches = {"class_token": False, "pool": "gap"} if case == "aim" else {}
        options = {"architecture": SIZES | patches, "image_size": 8, "optimizer": optimizer}
        return UNLABELLED[case]("vit_ti16", **options)
    options: dict[str, Any] = {"architecture": sizes, "name": "vit_ti16"}
    if case == "head":
        options = {"pretrained": other}
    if case == "distilled":
        sizes["distillation_token"] = True
        options["loss"] = Loss(teacher=Distillation(same))
    module = ImageClassifier.of(
        **options,
        classes=["a", "b", "c"],
        image_size=8,
        mixing=Mixing(mixup=0.8, cutmix=1.0),
        optimizer=optimizer,
    )
    if case != "head":
        for layer in module.model.head_layers:
            torch.nn.init.normal_(layer.get_parameter("weight"))
    return module


def train(case: str, photos: str, other: str, same: str, processes: int) -> dict[str, Any]:
    """Losses, scores, whole weights and held numbers of a process's training."""
    record, data = Record(), make_data(photos, 8 // processes)
    callbacks: list[Callback] = [record]
    options: dict[str, Any] = {"precision": "bf16-mixed"} if case == "bf16" else {}
    if case == "averaged":
        callbacks.append(EMA(0.9))
        options["gradient_clip_val"] = 0.1
    if case == "head":
        callbacks += [LinearProbe(), FineTuneBySize()]
    if case not in ("averaged", *UNLABELLED):
        options["limit_val_batches"] = 0
    if processes > 1:
        options["strategy"] = ShardedStrategy()
    module = make_module(case, other, same)
    trainer = make_trainer(processes, callbacks=callbacks, max_steps=STEPS, **options)
    trainer.fit(module, data)
    scores = dict(trainer.callback_metrics)
    if case == "averaged":
        trainer.test(module, datamodule=data, verbose=False)
        scores |= trainer.callback_metrics
    return {
        "losses": record.losses,
        "held": record.held,
        "scores": {name: float(v) for name, v in scores.items() if name[:4] in ("val/", "test")},
        "weights": {name: full(t).clone() for name, t in module.state_dict().items()},
    }


def work(folder: Path, processes: int, *places: str) -> None:
    for case in TRAINED[processes]:
        result = train(case, *places, processes)
        torch.save(result, folder / f"{processes}.{case}.{os.environ['RANK']}")


def train_all(places: list[str], folder: Path, seconds: float) -> None:
    """By forked processes."""
    for processes in TRAINED:
        log = folder / str(processes)
        ends = together(processes, log, work, folder, processes, *places, seconds=seconds)
        assert not any(ends), [file.read_text()[-1000:] for file in log.iterdir()]
