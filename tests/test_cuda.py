"""On a CUDA device: the numbers of the CPU, exact resume, and every command that computes there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vit as package
from tests.command import Vit, coloured, saved, table, vit
from vit.training.network_training import NetworkTraining

assert vit  # a fixture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# Heads of 64 channels, as the kernels of attention want them.
SMALL = (
    "--model.architecture={patch_size: 8, width: 128, depth: 2, mlp_dim: 256, num_heads: 2}",
    "--data.image_size=32",
    "--data.batch_size=8",
    "--data.loading.num_workers=0",
)
# Three steps per epoch; every epoch is saved.
RUN = ("--save_every=0", "--trainer.max_epochs=4", "--trainer.log_every_n_steps=1")
EXACT = "--trainer.deterministic=true"


@pytest.fixture(autouse=True)
def whole_float32() -> Iterator[None]:
    """Convolutions in float32, in place of the TF32 that PyTorch takes by default."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch.use_deterministic_algorithms(False)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return coloured(tmp_path / "photos")


def far(values: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error against float64 values."""
    return ((values.double().cpu() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("vit_ti16", 224),
        ("vit_b32", 224),
        ("r_vit_ti16", 64),
        ("r50_vit_b32", 64),
        ("bit_r50x1", 224),
    ],
)
def test_logits_are_those_of_float64_on_a_cpu(name: str, side: int) -> None:
    torch.manual_seed(0)
    options = {} if name.startswith("bit") else {"image_size": side}
    model = package.create_model(name, num_classes=10, **options).eval()
    for layer in model.head_layers:
        torch.nn.init.normal_(layer.weight)
    images = torch.randn(4, 3, side, side)
    with torch.inference_mode():
        exact = model.double()(images.double())
        model = model.float().cuda()
        assert far(model(images.cuda()), exact) < 5e-5
        with torch.autocast("cuda", torch.bfloat16):
            assert far(model(images.cuda()), exact) < (0.2 if name == "bit_r50x1" else 3e-2)
        torch.backends.cudnn.allow_tf32 = True
        assert far(model(images.cuda()), exact) < (2e-2 if name == "bit_r50x1" else 3e-3)


def losses(run: Path) -> list[float]:
    return [float(row["train/loss"]) for row in table(run / "metrics.csv") if row["train/loss"]]


@pytest.mark.parametrize("optimizer", ["torch.optim.AdamW", "vit.MuonWithAdamW", "vit.LAMB"])
def test_losses_of_a_float32_run_are_those_of_a_cpu(vit: Vit, folder: Path, optimizer: str) -> None:
    for device in ("cpu", "cuda"):
        done = vit(
            *("fit", "-c", "cifar10", f"--data.root={folder}", *SMALL, *RUN),
            *(f"--model.optimizer={optimizer}", "--model.optimizer.lr=0.001"),
            *("--trainer.precision=32-true", f"--trainer.accelerator={device}"),
            f"--run_dir={device}",
        )
        assert done.status == 0, done.err
    cpu, cuda = losses(Path("cpu")), losses(Path("cuda"))
    assert len(cpu) == 12
    np.testing.assert_allclose(cuda, cpu, rtol=1e-3)


WAYS = {
    "float32": ["--trainer.precision=32-true"],
    "mixed bfloat16, by default": [],
    "true bfloat16": ["--trainer.precision=bf16-true"],
    "mixed float16": ["--trainer.precision=16-mixed"],
    "ddp": ["--trainer.strategy=ddp", "--trainer.devices=1"],
    "fsdp2": ["--trainer.strategy=fsdp2", "--trainer.devices=1"],
    "average": ["--trainer.callbacks+=vit.EMA", "--trainer.callbacks.decay=0.9"],
    "cutmix": ["--model.mixing.cutmix=1"],
    "dropout": ["--model.architecture.dropout=0.1", "--model.architecture.drop_path=0.2"],
    "recomputed": ["--model.architecture.recompute=true"],
}
TASKS = ("masked_patches_cifar10", "mae_cifar10", "autoregressive_cifar10")


class Interrupted(Exception):
    """Raised in place of a step."""


def interrupted_and_whole(
    vit: Vit, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> dict[str, float]:
    """Largest difference of each tensor between a run that broke off at its eighth step and was
    continued, and one that did not break off."""
    done = vit(*command, "--run_dir=whole")
    assert done.status == 0, done.err
    step, steps = NetworkTraining.training_step, 0

    def broken(self: Any, *args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 8:
            raise Interrupted
        return step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(NetworkTraining, "training_step", broken)
        assert vit(*command, "--run_dir=broken").status == 1
    done = vit(*command, "--run_dir=broken")
    assert done.status == 0, done.err
    states = [
        torch.load(f"{name}/checkpoints/last.ckpt", weights_only=True)
        for name in ("whole", "broken")
    ]
    assert states[0]["global_step"] == states[1]["global_step"] > 8
    return {
        name: (value.double() - states[1]["state_dict"][name].double()).abs().max().item()
        for name, value in states[0]["state_dict"].items()
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_deterministic_run_that_was_interrupted_ends_with_the_same_bits(
    vit: Vit, folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    command = ["fit", "-c", "cifar10", f"--data.root={folder}", *SMALL, *RUN, *WAYS[way], EXACT]
    if way == "fsdp2":
        command += ["--model.optimizer=torch.optim.AdamW", "--model.optimizer.lr=0.001"]
        done = [vit(*command, f"--run_dir={name}") for name in ("one", "two")]
        assert [each.status for each in done] == [0, 0], done[0].err
        files = [Path(n, "model", "model.safetensors").read_bytes() for n in ("one", "two")]
        assert files[0] == files[1]
        return
    differences = interrupted_and_whole(vit, monkeypatch, command)
    assert not any(differences.values()), differences


@pytest.mark.parametrize("recipe", TASKS)
def test_runs_without_labels_are_the_same(
    vit: Vit, folder: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    sizes = "patch_size: 8, width: 128, depth: 2, mlp_dim: 256, num_heads: 2"
    patches = ", class_token: false, pool: gap" if "autoregressive" in recipe else ""
    command = ["fit", "-c", f"pretrain/{recipe}", f"--data.root={folder}", *SMALL[1:], *RUN]
    command += [f"--model.architecture={{{sizes}{patches}}}"]
    differences = interrupted_and_whole(vit, monkeypatch, [*command, EXACT])
    assert not any(differences.values()), differences


def test_default_kernels_resume_exactly_too(
    vit: Vit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["fit", "-c", "cifar10", f"--data.root={folder}", *SMALL, *RUN]
    differences = interrupted_and_whole(vit, monkeypatch, command)
    assert not any(differences.values()), differences


def test_commands_after_a_run_on_the_gpu(vit: Vit, folder: Path) -> None:
    done = vit("fit", "-c", "cifar10", f"--data.root={folder}", *SMALL, *RUN, "--run_dir=run")
    assert done.status == 0, done.err
    assert "precision bf16-mixed: the GPU has bfloat16" in done.out + done.err
    assert json.loads(Path("run/summary.json").read_text())["peak_memory_gb"] > 0
    image = next(folder.rglob("*.jpg"))
    for command in (
        ("test", "run"),
        ("validate", "run"),
        ("predict", "run", "--out=out.csv"),
        ("classify", "run", image),
        ("classify", "run", image, "--device=cpu"),
        ("knn", "run", f"--data={folder}"),
        ("probe", "run", f"--data={folder}"),
        ("fewshot", "run", f"--data={folder}", "--shots", "2"),
        ("inspect", "run", image),
        ("trust", "run"),
        ("robustness", "run", f"--data={folder}"),
        ("compare", "run"),
        ("bench", "run", "--rounds=2", "--batch-size", "2"),
        ("data", "check", folder, "--model=run"),
    ):
        done = vit(*command)
        assert done.status == 0, (command, done.err[-2000:])


def test_two_compiled_runs_are_equal_and_benched(vit: Vit, folder: Path) -> None:
    """In other processes: the checks of shapes in this one cannot be compiled."""
    command = ["fit", "-c", "cifar10", f"--data.root={folder}", *SMALL, *RUN, EXACT]
    command += ["--model.compile=true"]
    for words in (
        [*command, "--run_dir=whole"],
        [*command, "--run_dir=parts", "--trainer.limit_val_batches=0"],
        ["bench", "whole", "--rounds=2", "--batch-size", "2", "--train", "--compile=default"],
    ):
        done = subprocess.run([sys.executable, "-m", "vit", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    states = [
        torch.load(f"{name}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for name in ("whole", "parts")
    ]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_scores_on_the_gpu_are_those_of_the_cpu(vit: Vit, folder: Path) -> None:
    done = vit("fit", "-c", "cifar10", f"--data.root={folder}", *SMALL, *RUN, "--run_dir=run")
    assert done.status == 0, done.err
    scores = []
    for device in ("cpu", "cuda"):
        words = (f"--trainer.accelerator={device}", "--trainer.precision=32-true", "--json")
        done = vit("validate", "run", *words)
        assert done.status == 0, done.err
        scores.append(json.loads(done.out))
    flat = [{k: v for k, v in s.get("metrics", s).items() if isinstance(v, float)} for s in scores]
    assert flat[0].keys() == flat[1].keys() and flat[0]
    for name, value in flat[0].items():
        assert value == pytest.approx(flat[1][name], rel=1e-4, abs=1e-6), name


def test_photos_are_learned_by_all_three_recipes(vit: Vit, folder: Path) -> None:
    weights = saved(Path("weights"))
    common = [f"--data.root={folder}", f"--pretrained={weights}", "--data.loading.num_workers=0"]
    common += ["--data.batch_size=8", "--steps=4"]
    for words in (
        ["-c", "finetune", "--run_dir=tuned"],
        ["-c", "lora", "--model.lora=2", "--run_dir=lora"],
        ["-c", "probe", "--run_dir=probe"],
    ):
        steps = common[:-1] if "probe" in words else common
        done = vit("fit", *words, *steps)
        assert done.status == 0, (words, done.err[-2000:])


def test_the_batch_that_fits_is_tried_on_the_gpu(vit: Vit, folder: Path) -> None:
    command = ("fit", "-c", "cifar10", f"--data.root={folder}", *SMALL, "--steps=2")
    done = vit(*command, "--data.batch_size=auto", "--run_dir=auto")
    assert done.status == 0, done.err


def test_memory_beyond_the_gpu_is_one_line(vit: Vit, folder: Path) -> None:
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        sizes = "--model.architecture={patch_size: 8, width: 1024, depth: 24, num_heads: 16}"
        words = (sizes, "--data.image_size=512", "--data.batch_size=24", "--steps=2")
        done = vit("fit", "-c", "cifar10", f"--data.root={folder}", *SMALL[3:], *words)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert done.status == 2
    assert "out of memory with batches of" in done.err and "--data.batch_size" in done.err


def test_exports_are_proved_against_the_model_on_the_gpu(vit: Vit, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    weights = saved(Path("weights"))
    for kind in ("onnx", "pt2"):
        done = vit("export", weights, f"model.{kind}")
        assert done.status == 0, done.err[-2000:]
