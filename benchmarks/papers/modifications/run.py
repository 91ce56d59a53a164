"""Do modifications transfer, on images? Rows of arXiv:2102.11972, Table 1, that an encoder has.

    python -m benchmarks.papers.modifications.run --data cifar10/

One small ViT per modification, all else equal, on CIFAR-10 (JPEG; `--data` has train/ and test/
with one folder per class). The baseline has ReLU, as there. All arms have one seed, then the
baseline five, then all others up to three, seed by seed, so that the command may be ended at any
time; it goes on where it was. Written before the first result, and not changed: the setting below,
the claims in page.py, and that nothing is chosen: the last weights count.
The rate is the better one of RATES for the baseline alone, with seed 99, on images that are in
neither train nor test. Steps per second are measured at the end, in turns.
`--device cuda` trains the larger setting.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.lib.harness import build_model, on_device, publish, take_turns, training, work
from benchmarks.papers.positions.run import Setting, Split, fit, options_of, run
from vit.models.config import ViTConfig


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What differs from the baseline."""

    parts: dict[str, Any] = field(default_factory=dict)
    """Kind to part, and its options."""
    layers: float = 1.0
    """Layers over those of the baseline. Heads keep their size; their number and the hidden size
    are divided by this, so that parameters and operations stay."""


def of(**parts: str | dict[str, Any]) -> Arm:
    """Parts of each kind, by name, or with options."""
    return Arm(parts={kind: {"name": p} if isinstance(p, str) else p for kind, p in parts.items()})


BASELINE = "ReLU"
PLAIN_ARMS: dict[str, Arm] = {
    BASELINE: of(),
    "GELU": of(mlp="gelu"),
    "Swish": of(mlp="swish"),
    "ELU": of(mlp="elu"),
    "GLU": of(mlp="glu"),
    "GEGLU": of(mlp="geglu"),
    "ReGLU": of(mlp="reglu"),
    "SELU": of(mlp="selu"),
    "SwiGLU": of(mlp="swiglu"),
    "LiGLU": of(mlp="liglu"),
    "sigmoid": of(mlp="sigmoid"),
    "softplus": of(mlp="softplus"),
    "RMSNorm": of(norm="rms"),
    "ReZero": of(residual="rezero"),
    "ReZero, LayerNorm": of(residual="rezero", norm="layer"),
    "ReZero, RMSNorm": of(residual="rezero", norm="rms"),
    "Fixup": of(residual="fixup"),
    "norm after addition": of(residual="post"),
    "no residual": of(residual="none"),
    "no feed-forward": of(mlp="none"),
    "2 x layers": Arm(layers=2),
    "3/2 x layers": Arm(layers=3 / 2),
    "2/3 x layers": Arm(layers=2 / 3),
    "1/2 x layers": Arm(layers=1 / 2),
    "layers shared": of(stack="shared"),
    "mixture of experts": of(mlp={"name": "experts", "chosen": 2, "expert": "relu"}),
    "Switch": of(mlp={"name": "experts", "expert": "relu"}),
    "funnel": of(stack="funnel"),
}
MIXED: dict[str, str | dict[str, Any]] = {
    "synthesizer, dense": "synthesizer_dense",
    "synthesizer, random": "synthesizer_random",
    "synthesizer, factorized": "synthesizer_factorized",
    "lightweight convolution": "lightweight",
    "dynamic convolution": "dynamic",
    "convolution": "convolution",
    "window attention": {"name": "window", "size": 4},
    "axial attention": {"name": "axial", "axes": "alternate"},
    "Linformer": "linformer",
    "BigBird": {"name": "bigbird", "block": 2},
    "RNN": "rnn",
    "LSTM": "lstm",
    "GRU": "gru",
    "attention without scale": "dot_product",
    "attention of the tokens": {"name": "dot_product", "projected": False},
}
"""Parts in the place of attention. BigBird's 16 tokens per block are too many for 64 tokens."""
ARMS = PLAIN_ARMS | {arm: of(mixer=part) for arm, part in MIXED.items()}
RATES = {"rate 0.001": 1e-3, "rate 0.003": 3e-3}
"""Trainings of the baseline that chose the rate of all others."""
SEEDS, BASELINE_SEEDS, CHOICE_SEED = 3, 5, 99
SETTING = Setting(
    pixels=32, patch_size=4, steps=300, width=36, depth=6, num_heads=6, lr=3e-3, flip=True,
)  # fmt: skip
LARGE = Setting(
    pixels=32, patch_size=4, steps=20_000, batch=256, width=144, depth=12, num_heads=12, flip=True,
    train_per_class=4_900, test_per_class=800, warmup=1_000,
)  # fmt: skip
QUICK = Setting(
    pixels=8, patch_size=2, steps=2, batch=8, width=36, depth=2, num_heads=6, warmup=1,
    test_per_class=2,
)  # fmt: skip


def config_of(setting: Setting, arm: str) -> ViTConfig:
    """A ViT without class token, whose head reads the mean of the patches."""
    layers, parts = ARMS[arm].layers, {"mlp": {"name": "relu"}, **ARMS[arm].parts}
    if layers != 1:
        parts["mixer"] = {"name": "softmax", "head_size": setting.width // setting.num_heads}
    return ViTConfig(
        image_size=setting.pixels, patch_size=setting.patch_size, num_classes=10,
        width=setting.width, depth=round(setting.depth * layers),
        mlp_dim=round(4 * setting.width / layers), num_heads=round(setting.num_heads / layers),
        pool="gap", class_token=False, variant=parts,
    )  # fmt: skip


@torch.no_grad()
def scores(model: Any, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Cross-entropy in nats, and accuracy in percent."""
    logits = torch.cat([model.eval()(x) for x in images.split(100)])
    hits = (logits.argmax(1) == labels).float().mean()
    return round(F.cross_entropy(logits, labels).item(), 4), round(100 * hits.item(), 2)


def train(setting: Setting, data: dict[str, Split], arm: str, seed: int) -> dict[str, Any]:
    """The scores and the cost of one training; those of RATES on images left out of train."""
    torch.manual_seed(seed)
    split = "pool" if arm in RATES else "test"
    setting = replace(setting, lr=RATES.get(arm, setting.lr))
    config = config_of(setting, BASELINE if arm in RATES else arm)
    model = build_model(config).to(data["train"][0].device)
    images, labels = (part[: 10 * setting.test_per_class] for part in data[split])
    setting = replace(setting, depth=config.depth)
    curve, seconds = fit(model, setting, data["train"], seed, lambda: scores(model, images, labels))
    cost = work(config)
    return {
        "curve": curve,
        "early_loss": min(curve.items())[1][0],
        "loss": curve[setting.steps][0],
        "accuracy": curve[setting.steps][1],
        "params": cost.params,
        "flops": cost.flops,
        "seconds": round(seconds, 1),
    }


def speeds(setting: Setting, device: str, rounds: int, shortest: float) -> dict[str, float]:
    """Training steps per second of every arm, which take turns of at least `shortest` seconds."""
    images = torch.randn(setting.batch, 3, setting.pixels, setting.pixels, device=device)
    steps = {}
    for arm in ARMS:
        step = training(build_model(config_of(setting, arm)).to(device), "fp32")
        steps[arm] = partial(step, images)
    times = take_turns("steps", steps, rounds, device, shortest)
    return {arm: round(1 / found.median, 2) for arm, found in times.items()}


def schedule(data: str, quick: bool) -> list[tuple[int, str, str]]:
    """Seeds, data and arms, in the order of the trainings."""
    first = [(0, data, arm) for arm in ARMS]
    if quick:
        return first
    choice = [(CHOICE_SEED, data, arm) for arm in RATES]
    noise = [(seed, data, BASELINE) for seed in range(1, BASELINE_SEEDS)]
    others = [(seed, data, arm) for seed in range(1, SEEDS) for arm in ARMS if arm != BASELINE]
    return choice + first + noise + others


def main(words: list[str] | None = None) -> dict[str, Any]:
    options = options_of(__doc__, words)
    if not options.quick and options.data is None:
        raise SystemExit("--data is missing: CIFAR-10 as folders")
    data, setting = "cifar10", SETTING if options.device == "cpu" else LARGE
    if options.quick:
        data, setting = "digits", QUICK
    content = run("modifications", options, {data: setting}, schedule(data, options.quick), train)
    rounds, shortest = (1, 0.0) if options.quick else (5, 0.05)
    content["steps_per_second"] = speeds(setting, options.device, rounds, shortest)
    publish(content, options, on_device("papers/modifications/results", options.device))
    return content


if __name__ == "__main__":
    main()
