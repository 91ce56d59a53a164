"""Images per second of our models, timm, torchvision and transformers, in one process.

    python -m benchmarks.speed.models            Ti, S, B, L, H, BiT R50x1, CIFAR's size
    python -m benchmarks.speed.models --models vit_s16 --what inference --results FILE
    python -m benchmarks.speed.models --device cuda
    python -m benchmarks.speed.models --quick    takes seconds; nothing is written

Every library is measured at its defaults (float32, default attention, torch.optim.AdamW) and at the
settings that may be its best: on a CPU float32 and bfloat16, each with fused and with explicit
attention and fused AdamW, without torch.compile (see LOG.md); on a GPU
bfloat16, fused AdamW and every mode of torch.compile. All use exact GELU; timm's model has our
weights. All settings alternate with plain matrix products of the model's shapes, which give the
peak. On a CPU the clock is the CPU time of one thread, which other programs disturb least.

The fastest of many equal settings is the luckiest one. Therefore on a CPU the best setting of each
library is measured again, in rounds of these alone, and these "finals" are the result.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

import vit
from benchmarks.lib.harness import (
    Call,
    ModelConfig,
    Rows,
    Times,
    arguments,
    document,
    has_bfloat16,
    in_turns,
    keep_memory,
    publish,
    ratio,
    results_name,
    span,
    take_turns,
    training,
    work,
)
from benchmarks.lib.model_peers import (
    BUILDERS,
    CIFAR,
    ISOLATES,
    Setting,
    configuration,
    fill,
    settings,
)
from benchmarks.lib.model_verdicts import mean_ratio, text, verdicts
from vit.extensions.compute.bench import Limit, limit

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BASE = "timm, default"
# Batch sizes on a CPU.
BATCHES = {"vit_b16": 4, "vit_l16": 2, "vit_h14": 1, "bit_r50x1": 4, CIFAR: 128}
ALL = ["vit_ti16", "vit_s16", CIFAR, "vit_b16", "vit_l16", "vit_h14", "bit_r50x1"]
# Minimum seconds per turn.
SHORTEST = 0.4
# Seconds of a final, and its least and most rounds.
FINAL_SECONDS, FINAL_ROUNDS = 60.0, (5, 41)
# Larger training steps are measured on a CPU only on request.
LONG_STEP = 2e11
GPU_BATCH = {"vit_l16": 128, "vit_h14": 64, CIFAR: 2048}
# Models in memory at a time, in addition to the baseline, which is in every group: as many as fit
# into these bytes with gradients and optimizer states, and no fewer than four.
BYTES_TOGETHER, FEWEST_TOGETHER = 6e9, 4


@dataclass(frozen=True)
class Job:
    """A model, and inference or training."""

    model: str
    config: ModelConfig
    what: str
    """inference or training."""
    batch: int
    device: torch.device
    rounds: int
    precisions: tuple[str, ...] = tuple(DTYPES)
    libraries: tuple[str, ...] = tuple(BUILDERS)

    @property
    def images(self) -> Tensor:
        """Random images `b c h w`, the same for all settings."""
        height, width = self.config.size
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(self.batch, 3, height, width, generator=generator)
        return images.to(self.device)

    @property
    def together(self) -> int:
        """Number of models in memory at a time."""
        each = work(self.config).params * (4 if self.what == "inference" else 16)
        return max(FEWEST_TOGETHER, int(BYTES_TOGETHER / each))


def prepare(job: Job, setting: Setting) -> Call:
    """One step of the model in this setting."""
    model = fill(BUILDERS[setting.library](job.config, setting)).to(job.device)
    images = job.images
    if job.what == "inference":
        model = model.eval().to(DTYPES[setting.precision])
        images = images.to(DTYPES[setting.precision])
        run = compiled(model, setting)

        def infer() -> object:
            with torch.inference_mode(), setting.attention():
                return run(images)

        return infer
    plain = None if setting.fused_optimizer else AdamW(model.parameters(), lr=1e-6)
    step = training(compiled(model.train(), setting), setting.precision, plain)

    def train() -> object:
        with setting.attention():
            return step(images)

    return train


def compiled(model: nn.Module, setting: Setting) -> nn.Module:
    """The model, compiled if the setting has a mode."""
    if setting.compile is None:
        return model
    # Otherwise models of one class share a small compilation cache, fall back to eager mode beyond
    # its size, and reuse the first model's attention kernels.
    apart: dict[str, Any] = {"isolate_recompiles": True} if ISOLATES else {}
    return torch.compile(model, mode=setting.compile, dynamic=False, **apart)


def measure(job: Job) -> Rows:
    """One row per setting, measured in groups that all contain the baseline."""
    rows: Rows = []
    names = {
        str(s): s
        for s in settings(job.config, job.device.type, job.what)
        if (s.library in job.libraries and s.precision in job.precisions) or str(s) == BASE
    }
    base = BASE if BASE in names else next(iter(names))
    others = [name for name in names if name != base]
    exact, together = reference(job), job.together
    limits = {
        precision: limit(job.config, job.batch, dtype, job.device)
        for precision, dtype in DTYPES.items()
        if precision in {setting.precision for setting in names.values()}
    }
    for start in range(0, len(others), together):
        group = [base, *others[start : start + together]]
        calls: dict[str, Call] = {f"products in {p}": limits[p].call for p in limits}
        peaks, errors = {}, {}
        for name in group:
            before = torch.cuda.memory_allocated() if job.device.type == "cuda" else 0
            calls[name] = prepare(job, names[name])
            peaks[name] = peak(calls[name], job.device, before)
            errors[name] = None
            if exact is not None and names[name].library in ("timm", "vit"):  # same weights
                errors[name] = logit_error(calls[name], exact)
        title = f"{job.model} {job.what}"
        times = take_turns(title, calls, job.rounds, job.device, SHORTEST)
        for name in group[1 if rows else 0 :]:
            rows.append(row(job, names[name], times, base, limits))
            rows[-1] |= {"logit_error": errors[name], "peak_bytes": peaks[name]}
    return rows


def final(job: Job, verdict: dict[str, Any], budget: float) -> dict[str, Any]:
    """Ours and each peer's best setting, measured again by themselves for `budget` seconds."""
    names = {str(s): s for s in settings(job.config, job.device.type, job.what)}
    ours, peers = verdict["ours"], verdict["peers"]
    calls = {name: prepare(job, names[name]) for name in (ours, *peers)}
    warm = in_turns(calls, rounds=1, shortest=0, clock="cpu")
    least, most = FINAL_ROUNDS
    seconds = sum(times.median for times in warm.values())
    rounds = max(least, min(most, round(budget / seconds)))
    times = in_turns(calls, rounds=rounds, shortest=0, clock="cpu")
    facts = {key: verdict[key] for key in ("model", "what", "precision", "ours")}
    return facts | {"ratios": {peer: times[ours].ratios(times[peer]) for peer in peers}}


def row(
    job: Job, setting: Setting, times: dict[str, Times], base: str, limits: dict[str, Limit]
) -> dict[str, Any]:
    """The result of one setting."""
    elapsed, precision = times[str(setting)], setting.precision
    flops = work(job.config)
    each = job.batch * (flops.flops if job.what == "inference" else flops.training_flops)
    products_ = times.get(f"products in {precision}", elapsed)
    ratios = elapsed.ratios(times[base])
    return {
        "model": job.model,
        "what": job.what,
        "batch_size": job.batch,
        "setting": str(setting),
        "precision": precision,
        "images_per_second": job.batch / elapsed.median,
        "spread": elapsed.spread,
        **ratio(ratios),
        "ratios": ratios,
        "limit_flops_per_second": limits[precision].flops / products_.median,
        "utilisation": each / limits[precision].flops * elapsed.faster_than(products_),
        "rounds": job.rounds,
    }


def reference(job: Job) -> Tensor | None:
    """float64 logits of timm's model with the common weights; None for slow models."""
    if job.what != "inference" or not isinstance(job.config, vit.ViTConfig):
        return None
    if work(job.config).flops > 5e10:
        return None
    plain = next(s for s in settings(job.config, "cpu", "inference") if str(s) == BASE)
    model = fill(BUILDERS["timm"](job.config, plain)).double().eval()
    with torch.inference_mode():
        return model(job.images[:2].cpu().double())


def logit_error(call: Call, exact: Tensor) -> float:
    """Relative error of the logits of the first two images."""
    logits: Any = call()
    logits = logits[:2].double().cpu()
    return ((logits - exact).norm() / exact.norm()).item()


def peak(call: Call, device: torch.device, before: int = 0) -> int | None:
    """Peak bytes of model and step above `before` on a GPU, None on a CPU."""
    if device.type != "cuda":
        return None
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    error = row.get("logit_error")
    return (
        f"{row['model']:10} {row['what']:9} {row['setting']:42} "
        f"{row['images_per_second']:9.2f}/s  x{span(row)}  {row['utilisation']:4.0%}"
        + (f"  error {error:.1e}" if error is not None else "")
    )


def report(rows: Rows, finals: Rows) -> None:
    """Prints ours against the best peer, and the means."""
    results = verdicts(rows, finals)
    print("\n".join(map(text, results)))
    for precision in dict.fromkeys(row["precision"] for row in results):
        mean = mean_ratio(results, precision)
        print(f"geometric mean over the best peer, {precision}: {mean:.3f}")


def measure_finals(todo: list[Job], rows: Rows, budget: float = FINAL_SECONDS) -> Rows:
    """The finals of these jobs."""
    by_name, finals = {(job.model, job.what): job for job in todo}, []
    for i, verdict in enumerate(verdicts(rows)):
        if (job := by_name.get((verdict["model"], verdict["what"]))) is not None:
            finals.append(final(job, verdict, budget))
            print(text(verdicts(rows, finals)[i]), flush=True)
    return finals


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, rounds=5)
    add = parser.add_argument
    add("--models", nargs="+", default=ALL, metavar="NAME")
    add("--what", nargs="+", choices=("inference", "training"))
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--batch-size", type=int, help="default: 8 images, fewer of large models; GPUs 256")
    add(
        "--precisions", nargs="+", choices=tuple(DTYPES), help="default: what the CPU has units for"
    )
    add("--libraries", nargs="+", choices=tuple(BUILDERS), default=list(BUILDERS))
    return parser.parse_args()


def jobs(options: argparse.Namespace) -> list[Job]:
    """The jobs that the options select."""
    device = torch.device(options.device)
    emulated = device.type == "cpu" and not has_bfloat16()
    precisions = options.precisions or (["fp32"] if emulated else list(DTYPES))
    jobs = []
    for name in [CIFAR] if options.quick else options.models:
        config = configuration(name)
        batch = GPU_BATCH.get(name, 256) if device.type == "cuda" else BATCHES.get(name, 8)
        batch = options.batch_size or (8 if options.quick else batch)
        flops = work(config).training_flops if device.type == "cpu" else 0
        for what in options.what or ("inference", "training"):
            if what == "training" and flops > LONG_STEP and not options.what:
                continue
            rounds = 3 if flops * batch > LONG_STEP else options.rounds
            rounds = 2 if options.quick else min(options.rounds, rounds)
            jobs.append(
                Job(
                    name,
                    config,
                    what,
                    batch,
                    device,
                    rounds,
                    tuple(precisions),
                    tuple(options.libraries),
                )
            )
    return jobs


def main() -> None:
    """Measures, prints tables and the JSON, writes the file."""
    options = parsed()
    torch.set_num_threads(1)
    keep_memory()
    todo = jobs(options)
    standard = results_name("models", options.device)
    rows: Rows = []
    for job in todo:
        rows += measure(job)
        print("\n".join(line(row) for row in rows if row["model"] == job.model), flush=True)
    finals = []
    if options.device == "cpu":
        finals = measure_finals(todo, rows, 0.0 if options.quick else FINAL_SECONDS)
        report(rows, finals)
    import timm
    import torchvision
    import transformers

    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    clock = "cpu" if options.device == "cpu" else "wall"
    measured = document("models", rows, device=device, clock=clock, threads=1, finals=finals)
    peers = (timm, torchvision, transformers)
    measured["versions"] |= {peer.__name__: peer.__version__ for peer in peers}
    every = set(options.libraries) == set(BUILDERS)
    whole = set(options.models) >= set(ALL) and not options.what and every
    publish(measured, options, standard if whole else None)


if __name__ == "__main__":
    main()
