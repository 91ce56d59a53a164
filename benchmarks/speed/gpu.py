"""What a GPU needs to be known of, besides speed/models.py; benchmarks/gpu.sh runs it all.

    python -m benchmarks.speed.gpu PART [--device cpu] [--quick] [--results FILE]

Parts, each within eight minutes on one large GPU:
- attention: every backend of scaled_dot_product_attention, forward and backward, at 65 to 1025
  tokens, with its error against float64
- optimizers: a training step with AdamW, fused AdamW and Muon
- determinism: whether two trainings end with the same bits, by default kernels and others
- memory: peak bytes of a training step with and without activation checkpointing, and what
  `vit compare` predicts
- processes: seconds to start one process with DistributedDataParallel and with FSDP2, and a step
- feeding: images per second from JPEG files to batches on the device, by number of workers

Calls of a part alternate. `--quick` takes the smallest sizes, so that it can be tried anywhere. The
last line of output is the JSON.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import AdamW

from benchmarks.lib.harness import (
    Call,
    Rows,
    arguments,
    build_model,
    document,
    finisher,
    free_port,
    param_groups,
    publish,
    results_name,
    take_turns,
    training,
    work,
    write_manifest,
)
from benchmarks.lib.model_peers import configuration, sized
from benchmarks.speed.data import image_data
from benchmarks.speed.models import peak
from vit import ViTConfig


class Bench:
    """The device, the size of everything, and the clock."""

    def __init__(self, device: str, toy: bool) -> None:
        self.device, self.toy = torch.device(device), toy
        self.precision = "bf16" if device == "cuda" else "fp32"

    def config(self, name: str) -> ViTConfig:
        """A named ViT, or a tiny one of the same depth class."""
        if self.toy:
            return sized(32, 2, 32, 8, num_heads=2, num_classes=5)
        config = configuration(name)
        assert isinstance(config, ViTConfig)
        return config

    def images(self, config: ViTConfig, batch: int) -> Tensor:
        """A random batch `b c h w`."""
        return torch.randn(batch, 3, *config.size, device=self.device)

    def time(self, calls: dict[str, Call]) -> dict[str, Any]:
        """Milliseconds per call, median and range over alternating rounds."""
        shortest = 0.0 if self.toy else 0.2
        times = take_turns("calls", calls, 2 if self.toy else 5, self.device, shortest)
        return {
            name: {
                "milliseconds": 1e3 * each.median,
                "min": 1e3 * min(each.values),
                "max": 1e3 * max(each.values),
            }
            for name, each in times.items()
        }


def attention(bench: Bench) -> Rows:
    """Backends of scaled_dot_product_attention."""
    backends = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    if bench.device.type == "cuda":
        backends += [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    rows = []
    for tokens in (17,) if bench.toy else (65, 197, 257, 577, 1025):
        batch = 2 if bench.toy else max(1, 50_000 // tokens)
        q, k, v = (
            torch.randn(batch, 12, tokens, 64, device=bench.device, dtype=dtype, requires_grad=True)
            for _ in range(3)
        )
        few = [x[:1].detach().double() for x in (q, k, v)]
        exact = nn.functional.scaled_dot_product_attention(*few)

        def run(backend: SDPBackend, backward: bool, inputs: tuple[Tensor, ...] = (q, k, v)) -> Any:
            with sdpa_kernel(backend), torch.set_grad_enabled(backward):
                out = nn.functional.scaled_dot_product_attention(*inputs)
            return torch.autograd.grad(out.sum(), inputs) if backward else out

        calls, errors = {}, {}
        for backend in backends:
            try:
                out = run(backend, False)[:1].double()
                run(backend, True)
            except RuntimeError as error:  # this backend does not have these sizes
                rows.append({"tokens": tokens, "backend": backend.name, "refused": str(error)[:80]})
                continue
            errors[backend.name] = ((out - exact).norm() / exact.norm()).item()
            calls[f"{backend.name} forward"] = partial(run, backend, False)
            calls[f"{backend.name} forward and backward"] = partial(run, backend, True)
        for name, times in bench.time(calls).items():
            backend, what = name.split(" ", 1)
            row = {"tokens": tokens, "batch_size": batch, "backend": backend, "what": what}
            rows.append({**row, "error": errors[backend], **times})
    return rows


def optimizers(bench: Bench) -> Rows:
    """Training steps by optimizer."""
    from vit.training.optimizers.muon import MuonWithAdamW

    config = bench.config("vit_b16")
    images = bench.images(config, 2 if bench.toy else 128)
    calls: dict[str, Call] = {}
    for name in ("AdamW", "fused AdamW", "Muon"):
        network = build_model(config).to(bench.device)
        if name == "Muon":
            groups = param_groups(
                network.named_parameters(),
                depth=config.depth,
                no_weight_decay=network.no_weight_decay(),
            )
            optimizer = MuonWithAdamW(groups)
        else:
            fused = True if name == "fused AdamW" else None
            optimizer = AdamW(network.parameters(), lr=1e-6, fused=fused)
        calls[name] = partial(training(network, bench.precision, optimizer), images)
    return [
        {"optimizer": name, "batch_size": len(images), **times}
        for name, times in bench.time(calls).items()
    ]


def determinism(bench: Bench) -> Rows:
    """Two trainings from the same seed: whether they end with the same bits, and at what price.

    By PyTorch's default kernels, and by deterministic ones (--trainer.deterministic true).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rows = []
    for name in ("vit_s16",) if bench.toy else ("vit_s16", "r_vit_ti16", "bit_r50x1"):
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
            weights, call = [], None
            for _ in range(2):
                torch.manual_seed(0)
                config = bench.config(name) if bench.toy else configuration(name)
                network = build_model(config).to(bench.device)
                images = torch.randn(4 if bench.toy else 64, 3, *config.size).to(bench.device)
                call = partial(training(network, bench.precision), images)
                for _ in range(2 if bench.toy else 10):
                    call()
                weights.append([p.detach().clone() for p in network.parameters()])
            changed = [(a - b).abs().max().item() for a, b in zip(*weights, strict=True)]
            times = bench.time({"step": call})["step"] if call else {}
            row = {"model": name, "deterministic": deterministic, "equal": not any(changed)}
            rows.append({**row, "largest_difference": max(changed), **times})
    torch.use_deterministic_algorithms(False)
    return rows


def memory(bench: Bench) -> Rows:
    """Peak memory of training steps, and the prediction for the activations."""
    from vit.extensions.compute.candidate import from_config

    rows = []
    for name in ("vit_b16",) if bench.toy else ("vit_b16", "vit_l16", "vit_h14"):
        config = bench.config(name)
        batch = 2 if bench.toy else 32
        for checkpointing in (False, True):
            network: Any = build_model(config).to(bench.device)
            network.activation_checkpointing = checkpointing
            call = partial(training(network, bench.precision), bench.images(config, batch))
            times = bench.time({"step": call})["step"]
            model = from_config(name, config)
            predicted = model.activations(bench.precision, checkpointing=checkpointing)
            assert predicted is not None
            row = {"model": name, "batch_size": batch, "checkpointing": checkpointing}
            row |= {"peak_bytes": peak(call, bench.device)}
            copies = 2 * work(config).params if bench.precision == "bf16" else 0
            kept = copies + predicted.once + batch * predicted.per_image
            row |= {"predicted_bytes_of_activations": kept}
            rows.append({**row, "weights_bytes": 4 * work(config).params, **times})
            del network, call
    return rows


def processes(bench: Bench) -> Rows:
    """Start and steps of one process with DistributedDataParallel and with FSDP2."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    backend = "nccl" if bench.device.type == "cuda" else "gloo"
    start = time.perf_counter()
    torch.distributed.init_process_group(backend, rank=0, world_size=1)
    torch.distributed.barrier()
    group_seconds = time.perf_counter() - start
    config = bench.config("vit_b16")
    images = bench.images(config, 2 if bench.toy else 128)
    calls, seconds = {}, {}
    try:
        for name, wrap in {"plain": lambda m: m, "DDP": ddp, "FSDP2": fsdp2}.items():
            start = time.perf_counter()
            network = wrap(build_model(config).to(bench.device))
            calls[name] = partial(training(network, bench.precision), images)
            calls[name]()
            seconds[name] = time.perf_counter() - start
        return [
            {"wrapper": name, "first_step_seconds": seconds[name], **times}
            | {"group_seconds": group_seconds, "batch_size": len(images)}
            for name, times in bench.time(calls).items()
        ]
    finally:
        torch.distributed.destroy_process_group()


def ddp(network: nn.Module) -> nn.Module:
    """The network under DistributedDataParallel."""
    return nn.parallel.DistributedDataParallel(network)


def fsdp2(network: nn.Module) -> nn.Module:
    """The network under FSDP2, each layer a unit."""
    from torch.distributed.fsdp import fully_shard

    blocks: Any = network.get_submodule("blocks")
    for block in blocks:
        fully_shard(block)
    fully_shard(network)
    return network


def feeding(bench: Bench) -> Rows:
    """Images per second of the training loader over files of 500 x 375 pixels, by workers."""
    from PIL import Image

    count = 32 if bench.toy else 512
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i in range(count):
            noise = torch.randint(0, 256, (38, 50, 3), dtype=torch.uint8).numpy()
            paths.append((Path(folder, f"{i}.jpg"), "ab"[i % 2], "train"))
            Image.fromarray(noise).resize((500, 375)).save(paths[-1][0], quality=90)
        write_manifest(paths * (1 if bench.toy else 8), Path(folder, "images.csv"))
        for workers in (0, 1) if bench.toy else (1, 2, 4, 8, 16):
            rates = []
            images = image_data(f"{folder}/images.csv", 224, min(64, count), workers)
            loader = images.train_dataloader()
            for _ in range(1 if bench.toy else 3):
                batches = 0
                start = time.perf_counter()
                for images, *_ in loader:
                    images.to(bench.device, non_blocking=True)
                    batches += len(images)
                finisher(bench.device)()
                rates.append(batches / (time.perf_counter() - start))
            rows.append({"workers": workers, "images_per_second": statistics.median(rates)})
    return rows


PARTS: dict[str, Callable[[Bench], Rows]] = {
    part.__name__: part for part in (attention, determinism, optimizers, memory, processes, feeding)
}


def main() -> None:
    """Measures one part, writes its file, prints rows and the JSON."""
    parser = arguments(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = PARTS[options.part](Bench(options.device, options.quick))
    for row in rows:
        cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print("  ".join(cells))
    publish(document(options.part, rows), options, results_name(options.part, options.device))


if __name__ == "__main__":
    main()
