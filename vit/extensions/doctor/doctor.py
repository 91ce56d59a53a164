"""Checks of an installation and its machine for `vit doctor`, each with figures and a verdict."""

import os
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from shutil import disk_usage
from typing import Any

import torch
from lightning.pytorch import Trainer
from PIL import Image

from vit.data.memory import available_memory
from vit.data.module import ImageData
from vit.data.settings import Loading
from vit.errors import MESSAGE, UserError, shorten
from vit.extensions.reports.run_list import read_history
from vit.hardware import available_cores, cpu_features, cpu_name, default_precision
from vit.inference.classifier import load
from vit.runs.directory import RunDirectory
from vit.runs.fit import fit
from vit.runs.options import Options
from vit.weights.archives import BEST, LAST, read_checkpoint

STEPS, CRASH = 20, 12
"""Of the fit, and the step after which it is interrupted; a checkpoint is saved every 8 steps."""
OPTIONS = (
    f"-c quickstart --steps={STEPS} --batch_size=8 --save_every=0 --final_split=none "
    "--data.loading.num_workers=0 --model.mixing.mixup=0 --trainer.log_every_n_steps=1 "
    "--trainer.precision=null --trainer.devices=1 --trainer.enable_progress_bar=false"
).split()


def examine(*, more: bool = False) -> Iterator[dict[str, Any]]:
    """Makes CHECKS, and with `more` MORE_CHECKS, in a temporary directory with pictures; silent.

    `check`, its name; `ok`; `text`, figures or the reason of a failure, with the home directory
    written as ~.
    """
    home = os.path.join(os.path.expanduser("~"), "")
    with tempfile.TemporaryDirectory(prefix="vit_") as folder:
        _draw_photos(Path(folder) / "photos")
        for name, check in (CHECKS | (MORE_CHECKS if more else {})).items():
            ok = True
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                try:
                    text = check(Path(folder))
                except Exception as error:  # whatever it is, the report has to name it
                    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                    ok, text = False, shorten(kind + " ".join(str(error).split()), MESSAGE)
            yield {"check": name, "ok": ok, "text": text.replace(home, f"~{os.sep}")}


def _draw_photos(root: Path) -> None:
    """Two classes of 40 JPEGs."""
    for name, hue in (("red", 0), ("green", 120)):
        (root / name).mkdir(parents=True)
        for i in range(40):
            picture = Image.new("RGB", (24, 24), f"hsl({hue + i}, 90%, 50%)")
            picture.save(root / name / f"{i}.jpg")


def _machine(_: Path) -> str:
    cpu = f"{cpu_name()} ({torch.backends.cpu.get_cpu_capability()}{cpu_features()})"
    return (
        f"{cpu}, {available_cores()} of {os.cpu_count()} cores; free: {_gb(available_memory())} of "
        f"memory, {_gb(disk_usage('.').free)} of disk"
    )


def _startup(_: Path) -> str:
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    folders = map(Path, {*site.getsitepackages(), *users})
    files = sorted(path for folder in folders for path in folder.glob("*.pth"))
    names = [path.name for path in files if _runs_code(path)]
    return f"files that run code whenever Python starts: {', '.join(names) or 'none'}"


def _runs_code(path: Path) -> bool:
    """True if a line is executed by Python's module `site`, and does not only add a folder."""
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return any(line.startswith(("import ", "import\t")) for line in lines)


def _device(_: Path) -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = "cpu" if accelerator is None else accelerator.type
    torch.ones(1, device=device).item()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    precision, reason = default_precision("auto")
    return "; ".join([device, *names, f"precision {precision}, as {reason}"])


def _workers(folder: Path) -> str:
    loading = Loading(cache="none")
    data = ImageData(root=str(folder / "photos"), image_size=16, loading=loading)
    loader, began = data.evaluation_loader("train"), time.monotonic()
    loader.timeout = 60  # seconds
    [(images, *_)] = loader
    seconds = time.monotonic() - began
    return f"{loader.num_workers} read {len(images)} pictures in {seconds:.1f} s"


def _fit(folder: Path) -> str:
    rows = read_history(_trained(folder, "whole").folder / "metrics.csv")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    rate = (len(rows) - 1) / (rows[-1]["seconds"] - rows[0]["seconds"])
    text = f"{len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}, {rate:.1f} steps/s"
    if len(losses) != STEPS or not losses[-1] < losses[0]:
        raise UserError(f"{text}; the loss should have fallen in {STEPS} steps")
    return text


def _trained(folder: Path, name: str, *more: str) -> RunDirectory:
    places = (f"--data={folder / 'photos'}", f"--run_dir={folder / name}")
    return fit(Options([*OPTIONS, *places, *more]))[0]


def crash(trainer: Trainer, *_: object) -> None:
    """A callback's on_train_batch_end that ends a run in the middle of an epoch."""
    if trainer.global_step == CRASH:
        raise InterruptedError


def _resume(folder: Path) -> str:
    whole = read_checkpoint(folder / "whole/checkpoints" / LAST)["state_dict"]
    callback = "--trainer.callbacks+=lightning.pytorch.callbacks.LambdaCallback"
    with suppress(InterruptedError):
        hook = f"--trainer.callbacks.on_train_batch_end={__name__}.crash"
        _trained(folder, "resumed", callback, hook)
    run = _trained(folder, "resumed")
    state = read_checkpoint(run.folder / "checkpoints" / LAST)["state_dict"]
    other = [name for name, weights in whole.items() if not torch.equal(weights, state[name])]
    text = f"interrupted at step {CRASH}, resumed at step {run.step}"
    if other or not run.step:
        raise UserError(f"{text}: {len(other)} of {len(whole)} tensors are not the whole run's")
    return f"{text}: the weights are those of the whole run, bit for bit"


def _model(folder: Path) -> str:
    trained, saved = load(folder / "whole/checkpoints" / BEST), load(folder / "whole")
    images = torch.rand(4, 3, *saved.preprocess.image_size)
    with torch.inference_mode():
        equal = torch.equal(trained.model(images), saved.model(images))
    if not equal:
        raise UserError("the logits of model/ are not those of the checkpoint that it is from")
    return "the saved model gives the logits of its checkpoint, bit for bit"


def _processes(folder: Path) -> str:
    _vit(folder, "fit", *OPTIONS, f"--data={folder / 'photos'}", "--run_dir=two",
         "--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp")  # fmt: skip
    steps = read_checkpoint(folder / "two/checkpoints" / LAST)["global_step"]
    if steps != STEPS:
        raise UserError(f"two processes took {steps} steps, and not {STEPS}")
    return f"two processes on the CPU took {steps} steps"


def _export(folder: Path) -> str:
    lines = []
    for suffix, extra in (("pt2", ""), ("onnx", "onnxruntime"), ("xml", "openvino")):
        if extra and not find_spec(extra):
            lines.append(f".{suffix}: {extra} is not installed")
            continue
        _vit(folder, "export", "whole", f"photos.{suffix}")
        lines.append(f".{suffix}: proved")
    return ", ".join(lines)


def _vit(folder: Path, *words: str) -> None:
    """Runs a command in the directory. UserError with its last line if it fails."""
    command = [sys.executable, "-m", "vit", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"vit {words[0]} ended with status {done.returncode}: {last}")


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


CHECKS: dict[str, Callable[[Path], str]] = {
    "machine": _machine,
    "startup": _startup,
    "device": _device,
    "workers": _workers,
    "fit": _fit,
    "resume": _resume,  # of a run with the options of fit
    "model": _model,  # of the run of fit
}
"""Name -> check in that directory: the text of success, or an exception."""
MORE_CHECKS: dict[str, Callable[[Path], str]] = {
    "processes": _processes,
    "export": _export,  # of the run of fit
}
