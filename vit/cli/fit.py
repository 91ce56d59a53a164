"""`vit fit`: train by a recipe, score the best weights once, write all into one directory."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from vit.cli.run_directory import is_first_process, new_run_dir, resumed, run_name, writable
from vit.errors import UserError
from vit.hardware import limit_threads

# Below this, training from random weights deserves a word of warning.
FEW_IMAGES = 20_000

HELP = """\
usage: vit fit -c RECIPE [-c MORE] [OPTIONS]

Trains a model by a recipe (`vit recipes` lists them), then scores the best weights on the test
images. Everything goes into one directory under runs/: checkpoints, metrics, pictures, report.html
and model/, which `vit classify` and vit.load read. Later -c files and options win.

most used options:
  --data.root PATH             your images: a folder a class, with or without train/ val/ test/;
                               or a CSV or Parquet file with the columns path, label and split
  --data.image_size N          pixels
  --data.batch_size N          images a step and process
  --data.on_error skip         leave out unreadable images, and count them, instead of stopping
  --data.sampling.balanced true
                               draw rare classes as often as common ones
  --model.name NAME            architecture (`vit models` lists them)
  --model.pretrained PATH      weights to start from
  --model.optimizer.lr X       learning rate
  --trainer.max_epochs N       or --trainer.max_steps N, or --trainer.max_time 00:00:05:00
  --trainer.devices N          processes or GPUs; on CPUs add --trainer.accelerator cpu
  --trainer.precision P        32-true, bf16-mixed, ...; by default what the hardware is good at
  --seed_everything N          order, augmentation, initial weights and splits
  --run_dir DIR                where to write
  --ckpt_path FILE             continue that run exactly; `last` takes the one in --run_dir
  --print_config               print the whole configuration and stop

`vit fit --help-all` lists every option with its type and default."""


def run(args: list[str]) -> int:
    """Trains. Exit status 0 when the run and its evaluation are complete."""
    if not args or "-h" in args or "--help" in args:
        print(HELP)
        return 0
    if "--help-all" in args:
        args = ["--help" if arg == "--help-all" else arg for arg in args]
    elif not any(a in ("-c", "--config") or a.startswith("--config=") for a in args):
        args = _recipe_of_resumed_run(args)

    from vit.cli.lightning_cli import TrainingCLI  # heavy: imports lightning
    from vit.cli.results import budget_option, finish

    cli = TrainingCLI(args)
    config, data, model = cli.config, cli.datamodule, cli.model
    if config.ckpt_path is not None:
        checkpoint, run_dir = resumed(config.ckpt_path, config.run_dir)
        step = _resumed_step(checkpoint)
    else:
        checkpoint, step = None, None
        names = [args[i + 1] for i, a in enumerate(args[:-1]) if a in ("-c", "--config")]
        name = run_name(names[-1] if names else None, config.data.root, config.data.dataset)
        run_dir = new_run_dir(config.run_dir, name)
    trainer = cli.build_trainer(run_dir, step)
    params = sum(parameter.numel() for parameter in model.model.parameters())
    if trainer.strategy.root_device.type == "cpu":
        height, width = data.image_size
        tokens = height * width // model.model.patch_size**2
        limit_threads(params, tokens, data.batch_size)
    if trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
        trainer.fit(model, data)
        if is_first_process():
            print("fast_dev_run: training and validation went through; nothing was kept")
        return 0
    if is_first_process():
        writable(run_dir, "--run_dir")
        cli.save_config(run_dir / "config.yaml")
        _announce(data, model, params, run_dir)

    started, cpu = time.monotonic(), _cpu_seconds()
    try:
        trainer.fit(model, data, ckpt_path=None if checkpoint is None else str(checkpoint))
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a SIGTERM that Lightning has handled
        if is_first_process():
            print(_stopped(run_dir), file=sys.stderr)
        return 1
    if trainer.global_step == step and is_first_process():
        print(
            f"note: the run was complete at step {step}, nothing was trained; raise its limit, "
            f"{budget_option(trainer)}",
            file=sys.stderr,
        )
    timing = {
        "train_seconds": time.monotonic() - started,
        "train_cpu_seconds": _cpu_seconds() - cpu,
    }

    command = shlex.join(["vit", "fit", *args])
    return finish(cli, trainer, run_dir, command=command, timing=timing)


def _stopped(run_dir: Path) -> str:
    if not (run_dir / "checkpoints" / "last.ckpt").is_file():
        return f"stopped before a checkpoint was saved; {run_dir} cannot be continued"
    return f"stopped; vit fit --run_dir {shlex.quote(str(run_dir))} --ckpt_path last continues"


def _recipe_of_resumed_run(args: list[str]) -> list[str]:
    """`vit fit --run_dir RUN --ckpt_path last` needs no recipe: the run has its configuration."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--run_dir")
    known, _ = parser.parse_known_args(args)
    if known.ckpt_path is None:
        if any(arg.startswith("--print_config") for arg in args):
            return args
        raise UserError("no recipe: give one, such as -c finetune; `vit recipes` lists them")
    _, run_dir = resumed(known.ckpt_path, known.run_dir)
    config = run_dir / "config.yaml"
    return ["-c", str(config), *args] if config.is_file() else args


def _resumed_step(checkpoint: Path) -> int:
    import torch

    try:
        return int(torch.load(checkpoint, map_location="meta", weights_only=True)["global_step"])
    except Exception as error:  # torch.load has no error type of its own for a broken file
        raise UserError(
            f"{checkpoint} is not a readable checkpoint ({type(error).__name__}); try best.ckpt "
            "beside it"
        ) from error


def _cpu_seconds() -> float:
    """User and system time of this process and of its finished workers."""
    return sum(os.times()[:4])  # Windows counts no workers


def _announce(data: Any, model: Any, params: int, run_dir: Path) -> None:
    for note in data.splits.notes:
        print(f"note: {note}", file=sys.stderr)
    print(data.summary(), file=sys.stderr)
    if model.load_report is not None:
        print("\n".join(model.load_report.lines()), file=sys.stderr)
    elif data.labelled and data.root is not None and len(data.splits.train) < FEW_IMAGES:
        print(
            "note: random initial weights; on so few images pretrained ones (--model.pretrained "
            "WEIGHTS) score far higher",
            file=sys.stderr,
        )
    print(f"{params / 1e6:.1f} million parameters; run directory {run_dir}", file=sys.stderr)
