"""--trainer.strategy fsdp2 against ddp and one process: the same numbers, memory and speed.

    python -m benchmarks.speed.sharded [--device cuda] [--quick] [--results FILE]

equality: a small ViT is trained for 20 steps on CPUs (gloo) by 1, 2 and 4 processes with the same
images in each step. A row has the largest differences of losses and of final weights from one
process, and the largest share of the weights that a process holds.
speed: ViT-L/16 and ViT-H/14 in bf16-mixed with AdamW on all GPUs, ddp and fsdp2 in turns; images
per second of each round, peak bytes of a GPU, and bytes of weights, gradients and optimizer states.
With `--quick` a tiny model takes their place; on a CPU nothing else is timed.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader

from benchmarks.lib.harness import Rows, arguments, document, free_port, publish, ratio
from vit.extensions.recipes.ema import EMA
from vit.extensions.recipes.foreach import LAMB, SGDW
from vit.training.image_classifier import ImageClassifier
from vit.training.optimizers import muon
from vit.training.optimizers.muon import MuonWithAdamW
from vit.training.parts import full, local

STEPS, BATCH, CLASSES = 20, 16, 5
SMALL = {"patch_size": 8, "width": 64, "depth": 4, "mlp_dim": 128, "num_heads": 4}
# Large values of eps: rounding errors of gradients that are zero would become steps.
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": partial(AdamW, lr=1e-3, eps=1e-3, fused=True),
    "SGD": partial(SGD, lr=0.1, momentum=0.9),
    "LAMB": partial(LAMB, lr=1e-2, eps=1e-3, weight_decay=0.1),
    "SGDW": partial(SGDW, lr=0.1, weight_decay=1e-3),
    "MuonWithAdamW": partial(MuonWithAdamW, lr=1e-3, adamw_lr=1e-3),
}
CASES: list[dict[str, Any]] = [
    *({"optimizer": name} for name in OPTIMIZERS),
    {"optimizer": "AdamW", "ema": 0.9},
    {"optimizer": "AdamW", "gradient_clip_val": 0.1},
    {"optimizer": "AdamW", "recompute": True},
    {"optimizer": "AdamW", "precision": "bf16-mixed"},
    {"optimizer": "AdamW", "precision": "bf16-true"},
]
PLACES = [(1, "auto"), (2, "ddp"), (2, "fsdp2"), (4, "ddp"), (4, "fsdp2")]


class Record(Callback):
    """Losses, the end of each step, and what a process holds at the last one."""

    def __init__(self, steps: int) -> None:
        self.steps, self.losses, self.ends = steps, [], []
        self.share = self.held = 0.0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(outputs["loss"].detach())
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        if len(self.ends) == self.steps:
            weights = [*module.parameters()]
            own = [local(p.detach()).numel() for p in weights]
            self.share = sum(own) / sum(p.numel() for p in weights)
            states = trainer.optimizers[0].state.values()
            tensors = [t for state in states for t in state.values() if isinstance(t, Tensor)]
            gradients = weights  # of the same sizes
            held = (local(t.detach()) for t in (*weights, *gradients, *tensors))
            self.held = sum(t.numel() * t.element_size() for t in held)


def fit(
    module: Any,
    batches: Any,
    strategy: str,
    steps: int,
    device: str,
    processes: int,
    **options: Any,
) -> Record:
    """Trains on this process's batches."""
    record = Record(steps)
    callbacks = [record, *options.pop("callbacks", [])]
    trainer = Trainer(
        accelerator=device,
        devices=processes,
        strategy=strategy,
        max_steps=steps,
        callbacks=callbacks,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return record


def equality(rank: int, processes: int, strategy: str, cases: list[dict[str, Any]]) -> Any:
    """Losses, whole weights and the held share of each case."""
    muon.has_bfloat16 = lambda: False  # whose rounding is larger than the differences of interest
    random = torch.Generator().manual_seed(0)
    images = torch.randn(STEPS, BATCH, 3, 32, 32, generator=random)
    labels = torch.randint(CLASSES, (STEPS, BATCH), generator=random)
    mine = slice(rank, None, processes)
    batches = [(images[i, mine], labels[i, mine]) for i in range(STEPS)]
    found = []
    for case in cases:
        seed_everything(0, verbose=False)
        module = ImageClassifier.of(
            "vit_ti16",
            architecture={**SMALL, "recompute": case.get("recompute", False)},
            num_classes=CLASSES,
            image_size=32,
            optimizer=OPTIMIZERS[case["optimizer"]],
        )
        torch.nn.init.normal_(module.model.get_submodule("head").get_parameter("weight"), std=0.1)
        options = {k: v for k, v in case.items() if k in ("precision", "gradient_clip_val")}
        if "ema" in case:
            options["callbacks"] = [EMA(case["ema"])]
        record = fit(module, batches, strategy, STEPS, "cpu", processes, **options)
        weights = {name: full(t).float() for name, t in module.state_dict().items()}
        found.append((torch.stack(record.losses).float(), weights, record.share))
    return found


def speed(rank: int, processes: int, device: str, names: list[str], rounds: int) -> Any:
    """Rows of images per second and bytes, ddp and fsdp2 in turns."""
    rows = []
    for name in names:
        toy = name == "toy"
        batch, steps = (4, 4) if toy else (32, 20)
        options: dict[str, Any] = {"name": "vit_ti16", "architecture": SMALL, "image_size": 32}
        if not toy:
            options = {"name": name, "image_size": 224}
        image = torch.randn(batch, 3, options["image_size"], options["image_size"])
        batches = [(image, torch.zeros(batch, dtype=torch.long))] * steps
        figures: dict[str, Rows] = {"ddp": [], "fsdp2": []}
        for _ in range(rounds):
            for strategy, found in figures.items():
                module = ImageClassifier.of(**options, num_classes=1000)
                if device == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                record = fit(
                    module, batches, strategy, steps, device, processes, precision="bf16-mixed"
                )
                half = steps // 2  # the first steps allocate
                seconds = (record.ends[-1] - record.ends[half - 1]) / (steps - half)
                peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
                found.append(
                    {"rate": batch * processes / seconds, "held": record.held, "peak": peak}
                )
                del module
        for strategy, found in figures.items():
            rates = [each["rate"] for each in found]
            row = {"model": name, "strategy": strategy, "processes": processes, "batch_size": batch}
            row |= {"images_per_second": rates, "median": statistics.median(rates)}
            row |= {"held_bytes": found[-1]["held"], "peak_bytes": found[-1]["peak"]}
            pairs = zip(rates, (each["rate"] for each in figures["ddp"]), strict=True)
            rows.append(row | ratio([ours / theirs for ours, theirs in pairs]))
    return rows


def work(rank: int, environment: dict[str, str], file: Path, task: Callable[..., Any]) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.save(task(rank, int(environment["WORLD_SIZE"])), f"{file}.{rank}")


def together(processes: int, task: Callable[..., Any]) -> list[Any]:
    """What each of so many new processes returns for `task(rank, processes)`."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = {**address, "WORLD_SIZE": str(processes), "NODE_RANK": "0"}
    start = get_context("spawn").Process
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result")
        ranks = [start(target=work, args=(r, environment, file, task)) for r in range(processes)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit(f"{task}: a process has failed")
        return [torch.load(f"{file}.{rank}", weights_only=True) for rank in range(processes)]


def compare(cases: list[dict[str, Any]], places: list[tuple[int, str]]) -> Rows:
    """The table of equality; the first of the places is one process."""
    rows, alone = [], None
    for processes, strategy in places:
        ranks = together(processes, partial(equality, strategy=strategy, cases=cases))
        alone = alone or ranks[0]
        for i, case in enumerate(cases):
            losses = torch.stack([rank[i][0] for rank in ranks]).mean(0)
            of_one, weights, _ = alone[i]
            gaps = [(ranks[0][i][1][name] - w).abs().max().item() for name, w in weights.items()]
            row = {"processes": processes, "strategy": strategy, **case}
            row |= {"loss_difference": (losses - of_one).abs().max().item()}
            row |= {"weight_difference": max(gaps), "last_loss": of_one[-1].item()}
            rows.append(row | {"largest_share": max(rank[i][2] for rank in ranks)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    few = CASES[:1] if options.quick else CASES
    rows = compare(few, PLACES[:3] if options.quick else PLACES)
    names = ["toy"] if options.quick else ["vit_l16", "vit_h14"]
    processes = 2 if options.device == "cpu" else torch.cuda.device_count()
    rounds = 1 if options.quick else options.rounds
    task = partial(speed, device=options.device, names=names, rounds=rounds)
    timed = options.quick or options.device == "cuda"
    rates = together(processes, task)[0] if timed else []
    content = document("fsdp2", rows, speed=rates, steps=STEPS, batch=BATCH, device=options.device)
    publish(content, options, "results/sharded")


if __name__ == "__main__":
    main()
