"""`vit fit`: train by a recipe, score the best weights once, write all into one directory."""

import os
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vit.cli.class_counts import class_counts
from vit.cli.continuing import Finished, note_unfinished, settle, whole_checkpoint
from vit.cli.disk_check import check_space
from vit.cli.loggers import place_loggers
from vit.cli.processes import forget_routes, limit_threads_of, start, together
from vit.cli.recorded_config import write_config
from vit.cli.resuming import check_continues, ineffective
from vit.cli.run_directory import (
    UNFINISHED,
    Claim,
    claim_new,
    claim_resumed,
    has_checkpoint,
    kept,
    resumed,
    run_name,
)
from vit.console import is_first_process
from vit.errors import UserError
from vit.hardware import peak_memory
from vit.signals import Stopped
from vit.writing import write_bytes

# Below this, training from random weights deserves a word of warning.
FEW_IMAGES = 20_000

HELP = """\
usage: vit fit -c RECIPE [-c MORE] [OPTIONS]

Trains a model by a recipe (`vit recipes` lists them), then scores the best weights on the test
images. Everything goes into one directory under runs/: checkpoints, metrics, pictures, report.html
and model/, which `vit classify` and vit.load read. Later -c files and options win.

most used options:
  --data.root PATH             your images: a folder per class, with or without train/ val/ test/;
                               or a CSV or Parquet file with the columns path, label and split
  --data.image_size N          pixels
  --data.batch_size N          images per step and process; auto: as many as fit into memory
  --data.global_batch N        images per step of all processes; batch_size and accumulation follow
  --data.loading.on_error skip
                               leave out unreadable images, and count them, instead of stopping
  --data.label_separator ";"   what stands between several labels in a CSV; "|" does by itself
  --data.channels N            images that are not RGB: gray, 16 bits, .npy, up to 16 channels
  --data.sampling.balanced true
                               draw rare classes as often as common ones
  --model.name NAME            architecture (`vit models` lists them)
  --model.pretrained PATH      weights to start from
  --model.optimizer.lr X       learning rate
  --trainer.max_epochs N       or --trainer.max_steps N, or --trainer.max_time 00:00:05:00
  --patience N                 end when N validations have brought no better score
  --trainer.devices N          processes or GPUs; on CPUs add --trainer.accelerator cpu
  --trainer.precision P        32-true, bf16-mixed, ...; by default what the hardware is good at
  --seed_everything N          order, augmentation, initial weights and splits
  --run_dir DIR                where to write; an unfinished run there is continued, if it has the
                               same configuration
  --resume never|PATH          start a new run; or continue from that checkpoint
  --ckpt_path FILE             continue that run exactly, also with other options; `last` takes the
                               one in --run_dir
  --trainer.logger NAME        tensorboard, wandb or mlflow, in addition to metrics.csv
  --save_every N               seconds between saves of last.ckpt
  --on_nonfinite skip          leave out steps with gradients that are not finite, instead of
                               stopping
  --json                       print the summary of the finished run as JSON
  --print_config               print the whole configuration and stop

`vit fit --help-all` lists every option with its type and default."""


def run(args: list[str]) -> int:
    """Trains. Exit status 0 when the run and its evaluation are complete."""
    if not args or "-h" in args or "--help" in args:
        print(HELP)
    else:
        train(args)
    return 0


def train(args: list[str]) -> Path | None:
    """Trains by the arguments of `vit fit`; the run directory, None after `fast_dev_run`."""
    if "--help-all" in args:
        args = ["--help" if arg == "--help-all" else arg for arg in args]
    elif not any(a in ("-c", "--config") or a.startswith("--config=") for a in args):
        args = _recipe_of_resumed_run(args)

    args, as_json = [arg for arg in args if arg != "--json"], "--json" in args
    claims: list[Claim] = []
    with start(), ExitStack() as held:
        held.callback(forget_routes)

        def claim(cli: Any) -> None:
            """Takes the run directory; called when the options are known and nothing is built."""
            if not cli.config.trainer.fast_dev_run:
                settle(cli)
                claims.append(held.enter_context(kept(_claim(cli.config, args))))
                place_loggers(cli.config, claims[0].folder)
                if cli.config.resume == "auto":
                    note_unfinished(cli, claims[0].earlier_runs)

        from vit.cli.lightning_cli import TrainingCLI  # heavy: imports lightning

        try:
            cli = TrainingCLI(args, parsed=claim)
        except Finished as run:
            _say_finished(run.folder, as_json=as_json)
            return run.folder
        if not claims:
            _fast_dev_run(cli)
            return None
        _train(cli, claims[0], shlex.join(["vit", "fit", *args]), as_json=as_json)
        return claims[0].folder


def _claim(config: Any, args: list[str]) -> Claim:
    if config.ckpt_path is not None:
        return claim_resumed(*resumed(config.ckpt_path, config.run_dir))
    names = [args[i + 1] for i, a in enumerate(args[:-1]) if a in ("-c", "--config")]
    name = run_name(names[-1] if names else None, config.data.root, config.data.dataset)
    return claim_new(config.run_dir, name)


def _fast_dev_run(cli: Any) -> None:
    from vit.cli.batch_memory import naming_a_batch

    trainer = cli.build_trainer(None)
    with together(trainer), naming_a_batch(trainer, cli.model, cli.datamodule):
        trainer.fit(cli.model, cli.datamodule)
    if is_first_process():
        print("fast_dev_run: training and validation went through; nothing was kept")


def _train(cli: Any, claim: Claim, command: str, *, as_json: bool) -> None:
    from lightning.pytorch.callbacks import LambdaCallback

    from vit.cli.batch_choice import batch_choice_of
    from vit.cli.batch_memory import naming_a_batch
    from vit.cli.results import budget_option, finish, score_best

    config, data, model, run_dir = cli.config, cli.datamodule, cli.model, claim.folder
    checkpoint, saved = None, None
    if config.ckpt_path is not None:
        checkpoint, _ = resumed(config.ckpt_path, config.run_dir)
        newest = config.ckpt_path == "last"
        checkpoint, saved = whole_checkpoint(checkpoint, newest=newest)
    step = None if saved is None else int(saved["global_step"])
    choosing, chosen = data.chooses_batch, None
    if checkpoint is not None and choosing:
        chosen = batch_choice_of(checkpoint, config)
    config.batch_choice = chosen
    trainer = cli.build_trainer(run_dir, step)
    params = sum(p.numel() for p in model.model.parameters())
    trained = sum(p.numel() for p in model.model.parameters() if p.requires_grad)
    if not choosing:
        limit_threads_of(cli)
    if checkpoint is not None and saved is not None:
        check_continues(checkpoint, saved, cli, trainer)
    _check_space(cli, trainer, run_dir)
    _fix_routes(cli, saved)
    record = _Record(cli, run_dir)
    if is_first_process():
        if checkpoint is None and not choosing:
            record()
        if checkpoint is not None:
            for note in ineffective(checkpoint, config):
                print(f"note: {note}", file=sys.stderr)
        _announce(data, model, (params, trained), run_dir)
    # A resumed run keeps its config.yaml until its checkpoint has been read.
    trainer.callbacks.insert(0, LambdaCallback(on_train_start=record))
    if choosing:
        known = LambdaCallback(on_fit_start=lambda *_: limit_threads_of(cli))
        trainer.callbacks.insert(0, known)

    started, cpu, trained = time.monotonic(), _cpu_seconds(), False
    try:
        with together(trainer), naming_a_batch(trainer, model, data):
            trainer.fit(model, data, ckpt_path=None if checkpoint is None else str(checkpoint))
            record()  # also where nothing was left to train
            trained = True
            _say_if_early(trainer)
            if trainer.global_step == step and is_first_process():
                print(
                    f"note: the run was complete at step {step}, nothing was trained; raise its "
                    f"limit, {budget_option(trainer)}",
                    file=sys.stderr,
                )
            timing = {
                "train_seconds": time.monotonic() - started,
                "train_cpu_seconds": _cpu_seconds() - cpu,
                **_peak_memory(trainer.strategy.root_device),
            }
            outcome = score_best(cli, trainer, timing)
        finish(cli, trainer, run_dir, outcome, command=command, as_json=as_json)
    except Stopped as stop:
        stop.announced = True
        if is_first_process():
            print(_stopped(run_dir, trained=trained), file=sys.stderr)
        raise


def _say_finished(run_dir: Path, *, as_json: bool) -> None:
    if is_first_process():
        print(
            f"{run_dir} is finished, nothing was done; raise its limit to train on, such as "
            "--trainer.max_epochs",
            file=sys.stderr,
        )
        if as_json:
            print((run_dir / "summary.json").read_text(encoding="utf-8"), end="")


def _say_if_early(trainer: Any) -> None:
    for callback in trainer.early_stopping_callbacks:
        if callback.wait_count >= callback.patience and is_first_process():
            print(
                f"stopped early: {callback.monitor} has not improved in {callback.patience} "
                "validations",
                file=sys.stderr,
            )


def _check_space(cli: Any, trainer: Any, run_dir: Path) -> None:
    from vit.training.fitting import averages  # heavy: imports lightning

    scored = cli.datamodule.splits.val is not None
    check_space(cli.model, run_dir, averaged=averages(trainer), scored=scored)


def _fix_routes(cli: Any, saved: dict[str, Any] | None) -> None:
    """Fixes how products are computed, which config.yaml and every checkpoint record."""
    from vit.kernels.routes import PLAIN, use_routes
    from vit.kernels.runs import recorded_routes_of, run_routes

    config, trainer = cli.config, cli.trainer
    if config.routes == PLAIN:
        return
    recorded = None if saved is None else recorded_routes_of(saved)
    if config.routes == "auto" and recorded is not None:
        use_routes(recorded)
    device = trainer.strategy.root_device.type
    config.routes = run_routes(cli.model.model.config, str(trainer.precision), device)
    use_routes(config.routes)


class _Record:
    """Writes config.yaml, and that the run is not finished, once."""

    def __init__(self, cli: Any, run_dir: Path) -> None:
        self._cli, self._path, self._done = cli, run_dir / "config.yaml", False

    def __call__(self, *_: Any) -> None:
        if not self._done and is_first_process():
            write_bytes(self._path.with_name(UNFINISHED), b"")
            write_config(self._cli.parser, self._cli.config, self._path)
        self._done = True


def _stopped(run_dir: Path, *, trained: bool) -> str:
    if not has_checkpoint(run_dir):
        return "stopped before the first step: there was nothing to save"
    command = f"vit fit --run_dir {shlex.quote(str(run_dir))} --ckpt_path last"
    if trained:
        return f"stopped after training, while the run was scored; {command} scores it"
    return f"stopped; {command} continues"


def _recipe_of_resumed_run(args: list[str]) -> list[str]:
    """`vit fit --run_dir RUN --ckpt_path last` needs no recipe: the run has its configuration."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--run_dir")
    parser.add_argument("--resume", default="auto")
    known, _ = parser.parse_known_args(args)
    if known.resume not in ("auto", "never"):
        known.ckpt_path = known.ckpt_path or known.resume
        if Path(known.resume).is_dir():
            known.ckpt_path, known.run_dir = "last", known.resume
    elif known.resume == "auto" and known.run_dir is not None and known.ckpt_path is None:
        if has_checkpoint(Path(known.run_dir).expanduser()):
            known.ckpt_path = "last"
    if known.ckpt_path is None:
        if any(arg.startswith("--print_config") for arg in args):
            return args
        raise UserError("no recipe: give one, such as -c finetune; `vit recipes` lists them")
    _, run_dir = resumed(known.ckpt_path, known.run_dir)
    config = run_dir / "config.yaml"
    if not config.is_file():
        raise UserError(
            f"{run_dir} has no config.yaml, the configuration that the run was started with; put "
            "it back, or name its recipe with -c"
        )
    return ["-c", str(config), *args]


def _cpu_seconds() -> float:
    """User and system time of this process and of its finished workers."""
    return sum(os.times()[:4])  # Windows counts no workers


def _peak_memory(device: Any) -> dict[str, float]:
    peak = peak_memory(device)
    return {} if peak is None else {"peak_memory_gb": round(peak / 2**30, 2)}


def _announce(data: Any, model: Any, params: tuple[int, int], run_dir: Path) -> None:
    for note in data.splits.notes:
        print(f"note: {note}", file=sys.stderr)
    print(data.summary(), file=sys.stderr)
    if data.labelled:
        print(class_counts(data.classes, data.class_counts), file=sys.stderr)
    if model.load_report is not None:
        print("\n".join(model.load_report.lines()), file=sys.stderr)
    elif data.labelled and data.root is not None and len(data.splits.train) < FEW_IMAGES:
        print(
            "note: random initial weights; on so few images pretrained ones (--model.pretrained "
            "NAME; `vit models --weights` lists them) score far higher",
            file=sys.stderr,
        )
    total, trained = params
    share = "" if trained == total else f", {trained:,} of them trained"
    print(f"{total / 1e6:.1f} million parameters{share}; run directory {run_dir}", file=sys.stderr)
