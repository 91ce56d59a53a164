"""Images a second of our models beside timm, torchvision and transformers, in one process.

    python benchmarks/models.py                          Ti, S, B, L, H, BiT R50x1, CIFAR's size
    python benchmarks/models.py --models vit_s16 --what inference --results FILE
    python benchmarks/models.py --device cuda
    python benchmarks/models.py --quick                  seconds; nothing is written

Every library appears as it comes (float32, its default attention, torch.optim.AdamW) and in the
best settings known for it: on a CPU bfloat16, explicit attention and fused AdamW, without
torch.compile, which gives 0 to 8 % there after half a minute of compiling; on a GPU bfloat16, fused
AdamW and every mode of torch.compile. The arithmetic is the same in all (exact GELU), and timm's
weights are ours.
All take turns, round by round, and so do plain matrix products of the model's own shapes: the
limit. On a CPU the clock is the CPU time of one thread, which other programs disturb least.

A second table comes from processes of their own, one a row: what a script of that library costs as
it comes, page faults included, and its peak memory. Writes benchmarks/results/models_<device>.json;
the last line of the output is the JSON.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from collect import commit
from model_peers import BUILDERS, CIFAR, Setting, configuration, fill, settings
from torch import Tensor, nn

from vit.cli.compare_measure import Progress
from vit.compute.flops import work
from vit.compute.timing import Call, Limit, Times, finisher, in_turns, limit, products
from vit.hardware import hardware, keep_memory, versions
from vit.models.config import ViTConfig
from vit.models.matmul import pack
from vit.models.zoo import ModelConfig

ROOT = Path(__file__).parents[1]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BASE = "timm, as it comes"
# Images at a time on a CPU; PERFORMANCE.md's, so that the figures can be laid side by side.
BATCHES = {"vit_b16": 4, "vit_l16": 2, "vit_h14": 1, "bit_r50x1": 4, CIFAR: 128}
ALL = ["vit_ti16", "vit_s16", CIFAR, "vit_b16", "vit_l16", "vit_h14", "bit_r50x1"]
# Seconds that a turn takes at least.
SHORTEST = 0.4
# Whose training step is measured in processes of its own, too.
ALONE = ("vit_ti16",)
# A training step of more operations is measured on a CPU only if it is asked for.
LONG_STEP = 2e11
GPU_BATCH = {"vit_l16": 128, "vit_h14": 64, CIFAR: 2048}
# Models in memory at a time, beside the base that every group meets.
TOGETHER = 4


@dataclass(frozen=True)
class Job:
    """One model and one thing to do with it."""

    model: str
    config: ModelConfig
    what: str
    """inference or training."""
    batch: int
    device: torch.device
    rounds: int

    @property
    def clock(self) -> Any:
        """Of this device."""
        return "cpu" if self.device.type == "cpu" else "wall"

    @property
    def images(self) -> Tensor:
        """The same for all."""
        height, width = self.config.size
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(self.batch, 3, height, width, generator=generator)
        return images.to(self.device)


def prepare(job: Job, setting: Setting) -> Call:
    """One step of the model in this setting."""
    model = fill(BUILDERS[setting.library](job.config, setting)).to(job.device)
    images = job.images
    if job.what == "inference":
        model = model.eval().to(DTYPES[setting.precision])
        images = images.to(DTYPES[setting.precision])
        if setting.packed:
            pack(model)
        run = compiled(model, setting)

        def infer() -> object:
            with torch.inference_mode(), setting.attention():
                return run(images)

        return infer
    model.train()
    run = compiled(model, setting)
    fused = True if setting.fused_optimizer else None  # None is AdamW as it comes
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused)
    labels = torch.zeros(job.batch, dtype=torch.long, device=job.device)

    def train() -> object:
        mixed = setting.precision == "bf16"
        with torch.autocast(job.device.type, torch.bfloat16, enabled=mixed), setting.attention():
            loss = nn.functional.cross_entropy(run(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return train


def compiled(model: nn.Module, setting: Setting) -> Callable[..., Any]:
    """The model by torch.compile, where the setting has it."""
    if setting.compile is None:
        return model
    # On its own: models of one class would share what is compiled for a few of them, and fall back
    # to eager mode beyond; attention kernels chosen from outside would be those of the first.
    return torch.compile(model, mode=setting.compile, dynamic=False, isolate_recompiles=True)


def measure(job: Job, progress: Progress) -> list[dict[str, Any]]:
    """A row a setting, measured in groups that all have the base in them."""
    rows: list[dict[str, Any]] = []
    names = {str(s): s for s in settings(job.config, job.device.type, job.what)}
    base = BASE if BASE in names else next(iter(names))
    others = [name for name in names if name != base]
    exact = reference(job)
    limits = {
        precision: limit(
            products(job.config, job.batch, job.device),
            dtype,
            job.device,
            packed=job.what == "inference",
        )
        for precision, dtype in DTYPES.items()
    }
    for start in range(0, len(others), TOGETHER):
        group = [base, *others[start : start + TOGETHER]]
        calls: dict[str, Call] = {f"products in {p}": limits[p].call for p in DTYPES}
        peaks = {}
        errors = {}
        for name in group:
            progress.show(f"{job.model} {job.what}: building {name}")
            before = torch.cuda.memory_allocated() if job.device.type == "cuda" else 0
            calls[name] = prepare(job, names[name])
            peaks[name] = peak(calls[name], job.device, before)
            errors[name] = None
            if exact is not None and names[name].library in ("timm", "vit"):  # same weights
                errors[name] = logit_error(calls[name], exact)
        times = in_turns(
            calls,
            rounds=job.rounds,
            shortest=SHORTEST,
            clock=job.clock,
            finish=finisher(job.device),
            report=lambda line: progress.show(f"{job.model} {job.what}: {line}"),
        )
        for name in group[1 if rows else 0 :]:
            rows.append(row(job, names[name], times, base, limits))
            rows[-1] |= {"logit_error": errors[name], "peak_bytes": peaks[name]}
    return rows


def row(
    job: Job, setting: Setting, times: dict[str, Times], base: str, limits: dict[str, Limit]
) -> dict[str, Any]:
    """What one setting reached."""
    own, precision = times[str(setting)], setting.precision
    flops = work(job.config)
    each = job.batch * (flops.flops if job.what == "inference" else flops.training_flops)
    products_ = times[f"products in {precision}"]
    ratios = [b / a for a, b in zip(own.values, times[base].values, strict=True)]
    return {
        "model": job.model,
        "what": job.what,
        "batch_size": job.batch,
        "setting": str(setting),
        "precision": precision,
        "images_per_second": job.batch / own.median,
        "spread": own.spread,
        "ratio": own.faster_than(times[base]),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "limit_flops_per_second": limits[precision].flops / products_.median,
        "utilisation": limits[precision].share(each, own, products_),
        "rounds": job.rounds,
    }


def reference(job: Job) -> Tensor | None:
    """Logits in float64 of timm's model, whose weights all have; None where that takes long."""
    if job.what != "inference" or not isinstance(job.config, ViTConfig):
        return None
    if work(job.config).flops > 5e10:
        return None
    plain = next(s for s in settings(job.config, "cpu", "inference") if str(s) == BASE)
    model = fill(BUILDERS["timm"](job.config, plain)).double().eval()
    with torch.inference_mode():
        return model(job.images[:2].cpu().double())


def logit_error(call: Call, exact: Tensor) -> float:
    """Relative, for the first two images."""
    found: Any = call()
    found = found[:2].double().cpu()
    return ((found - exact).norm() / exact.norm()).item()


def peak(call: Call, device: torch.device, before: int) -> int | None:
    """Bytes that model and step need at most, on top of `before`; for a CPU see `alone`."""
    if device.type != "cuda":
        return None
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def alone(job: Job, progress: Progress) -> list[dict[str, Any]]:
    """CPU seconds, page faults and peak memory of processes that do nothing else."""
    names = [str(s) for s in settings(job.config, "cpu", job.what) if s.library in ("timm", "vit")]
    cases = [(name, False) for name in names] + [(name, True) for name in names if "vit" in name]
    found: dict[tuple[str, bool], list[dict[str, float]]] = {case: [] for case in cases}
    for turn in range(3):
        for name, keep in cases:
            progress.show(f"{job.model} {job.what} in its own process {turn + 1}/3: {name}")
            command = [sys.executable, __file__, "--alone", name, "--models", job.model]
            command += ["--what", job.what, "--batch-size", str(job.batch)]
            done = subprocess.run(
                [*command, *(["--keep-memory"] if keep else [])],
                capture_output=True,
                text=True,
                check=True,
            )
            found[name, keep].append(json.loads(done.stdout.splitlines()[-1]))
    first = next(iter(found.values()))
    return [
        {
            "model": job.model,
            "what": job.what,
            "setting": name + (", as the vit command runs it" if keep else ""),
            "images_per_cpu_second": job.batch / statistics.median(r["cpu_seconds"] for r in runs),
            "ratio": statistics.median(
                b["cpu_seconds"] / a["cpu_seconds"] for a, b in zip(runs, first, strict=True)
            ),
            **{
                key: statistics.median(r[key] for r in runs)
                for key in ("page_faults", "peak_bytes", "bytes_before")
            },
        }
        for (name, keep), runs in found.items()
    ]


def one_process(job: Job, name: str, steps: int = 5) -> dict[str, float]:
    """The part of `alone` that runs in the process; CPU time is user and system time."""
    setting = next(s for s in settings(job.config, "cpu", job.what) if str(s) == name)
    before = highest_bytes()
    call = prepare(job, setting)
    call()
    call()
    seconds, faults = [], []
    for _ in range(steps):
        start, old = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        call()
        seconds.append(time.process_time() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - old)
    return {
        "cpu_seconds": statistics.median(seconds),
        "page_faults": statistics.median(faults),
        "peak_bytes": highest_bytes(),
        "bytes_before": before,
    }


def highest_bytes() -> int:
    """Most memory that this process has had; ru_maxrss would be that of its parent, if higher."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def line(found: dict[str, Any]) -> str:
    """A row for people."""
    error = found.get("logit_error")
    return (
        f"{found['model']:10} {found['what']:9} {found['setting']:42} "
        f"{found['images_per_second']:9.2f}/s  x{found['ratio']:.2f} "
        f"({found['ratio_min']:.2f}-{found['ratio_max']:.2f})  {found['utilisation']:4.0%}"
        + (f"  error {error:.1e}" if error is not None else "")
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add: Callable[..., object] = parser.add_argument
    add("--models", nargs="+", default=ALL, metavar="NAME")
    add("--what", nargs="+", choices=("inference", "training"))
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--batch-size", type=int, help="default: 8 images, fewer of large models; GPUs 256")
    add("--rounds", type=int, default=5, help="default 5; large training steps on a CPU 3")
    add("--results", type=Path, help="where to write; by default only all models are written")
    add("--no-processes", action="store_true", help="leave out the second table")
    add("--quick", action="store_true", help="one small model, few rounds, no file written")
    add("--alone", help=argparse.SUPPRESS)
    add("--keep-memory", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def jobs(options: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    device = torch.device(options.device)
    names = [CIFAR] if options.quick else options.models
    found = []
    for name in names:
        config = configuration(name)
        batch = GPU_BATCH.get(name, 256) if device.type == "cuda" else BATCHES.get(name, 8)
        batch = options.batch_size or (8 if options.quick else batch)
        for what in options.what or ("inference", "training"):
            long = device.type == "cpu" and work(config).training_flops > LONG_STEP
            if what == "training" and long and not options.what:
                continue
            heavy = device.type == "cpu" and work(config).training_flops * batch > LONG_STEP
            rounds = 2 if options.quick else min(options.rounds, 3 if heavy else options.rounds)
            found.append(Job(name, config, what, batch, device, rounds))
    return found


def main() -> None:
    """Measures, writes the file, prints tables and the JSON."""
    options = arguments()
    torch.set_num_threads(1)
    todo = jobs(options)
    if options.alone:
        if options.keep_memory:
            keep_memory()
        print(json.dumps(one_process(todo[0], options.alone)))
        return
    keep_memory()  # for all alike; the second table shows what it does
    rows: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    with Progress() as progress:
        for job in todo:
            found = measure(job, progress)
            progress.show("")
            print("\n".join(map(line, found)), flush=True)
            rows += found
        small = [j for j in todo if j.what == "training" and j.model in ALONE]
        for job in [] if options.no_processes or options.device == "cuda" else small:
            found = alone(job, progress)
            progress.show("")
            for r in found:
                print(
                    f"{r['model']:10} {r['what']:9} {r['setting']:58} "
                    f"{r['images_per_cpu_second']:8.2f}/s  x{r['ratio']:.2f}  "
                    f"{r['page_faults']:7.0f} faults  {r['peak_bytes'] / 2**20:6.0f} MiB",
                    flush=True,
                )
            others += found
    import timm
    import torchvision
    import transformers

    document = {
        "what": "models",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "clock": todo[0].clock,
        "threads": 1,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "hardware": hardware(),
        "versions": {
            **versions(),
            "timm": timm.__version__,
            "torchvision": torchvision.__version__,
            "transformers": transformers.__version__,
        },
        "rows": rows,
        "alone": others,
    }
    whole = set(options.models) >= set(ALL) and not (options.quick or options.what)
    standard = ROOT / "benchmarks" / "results" / f"models_{options.device}.json"
    path = options.results or (standard if whole else None)
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
