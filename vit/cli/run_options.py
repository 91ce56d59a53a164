"""The options of a training run that are neither the model's, the data's nor the Trainer's."""

from typing import Literal

from lightning.pytorch.cli import LightningArgumentParser

from vit.training.callbacks import FiniteLoss


def add_run_options(parser: LightningArgumentParser) -> None:
    """Adds them, with their help texts."""
    parser.add_argument(
        "--task",
        type=str,
        default="classification",
        help="What is trained: classification, or masked_patches, which needs no labels.",
    )
    parser.add_argument(
        "--ckpt_path",
        type=str | None,
        default=None,
        help="Checkpoint of a run to continue exactly, or 'last' for the one in --run_dir.",
    )
    parser.add_argument(
        "--resume",
        type=str,
        default="auto",
        help="auto: continue the unfinished run in --run_dir, if it has this configuration. "
        "never: start a new run. PATH: continue from that checkpoint or run.",
    )
    parser.add_argument(
        "--save_every",
        type=float | None,
        default=None,
        help="Seconds between two saves of last.ckpt. By default 60 at ends of epochs, 900 "
        "within an epoch.",
    )
    parser.add_argument(
        "--run_dir",
        type=str | None,
        default=None,
        help="Where the run goes; by default runs/ and the name of the recipe or of data.root.",
    )
    parser.add_argument(
        "--final_split",
        type=str,
        default="test",
        help="Images that the finished run is scored on: test, val, or none. A set without "
        "test images is scored on val.",
    )
    parser.add_argument(
        "--patience",
        type=int | None,
        default=None,
        help="Validations without a better score (val/acc1, val/map, or val/loss where there "
        "are no labels) after which the run ends.",
    )
    parser.add_argument(
        "--on_nonfinite",
        type=Literal["stop", "skip"],
        default="stop",
        help="What a step with gradients that are NaN or infinite does: stop ends the run and "
        "names the step and its images; skip leaves the step out and counts it, at most "
        f"{FiniteLoss.MOST_IN_A_ROW} in a row.",
    )
    parser.add_argument(
        "--save_lora",
        type=bool,
        default=False,
        help="With --model.lora, writes RUN/lora/ too: what was trained, a few MB, apart from "
        "the weights that it changes; `vit convert` puts them together.",
    )
    parser.add_argument(
        "--batch_choice",
        type=dict | None,
        default=None,
        help="How a run with data.batch_size auto came to its batch; the run writes it.",
    )
    parser.add_argument(
        "--routes",
        type=dict[str, str] | Literal["auto", "plain"],
        default="auto",
        help="How products are computed on CPUs: auto (the routes that were measured to be the "
        "fastest on this machine; `vit bench --routes` lists them), plain (PyTorch's own "
        "operations), or KEY: ROUTE for single ones. A run keeps its routes: the last bits "
        "depend on them.",
    )
