"""`vit fit`: trains by a recipe, evaluates the best weights once, writes one run directory."""

from vit.console import is_first_process, say, show
from vit.errors import UserError
from vit.runs.short_names import Words

HELP = """\
usage: vit fit --data MY_PHOTOS [-c RECIPE] [OPTIONS]

Trains a model by a recipe (finetune, unless -c names another; `vit recipes` lists them), then
evaluates the best weights on the test images. Everything is written to one directory under runs/:
checkpoints, metrics, pictures, report.html, and model/ for `vit classify` and vit.load.

short names:
  --data X               your images: a folder per class, with or without train/ val/ test/; a CSV
                         or Parquet file with columns path, label, split; or the name of a data set
  --pretrained X         weights to start from: a name (`vit models --weights`), a file or a run
  --arch NAME            architecture (`vit models`); with --teacher RUN of a student (-c distill)
  --lr X                 learning rate
  --epochs N             length of training; or --steps N, or --budget 20m: the whole command
  --batch-size N         images per step and process; auto takes as many as fit on the GPU
  --image-size N         pixels
  --devices N            GPUs; with --trainer.accelerator cpu, processes
  --seed N               seed of order, augmentation, initial weights and splits

more options:
  --run_dir DIR          directory to write to; a run in it is resumed
  --resume never|PATH    start a new run, or resume that run or checkpoint (also --ckpt_path PATH)
  --cooldown N           lower a constant rate to 0 over the last N steps; with --resume RUN and
                         another --run_dir, over N steps more than RUN has taken
  --patience N           stop after N validations without a better score
  --save_every N         seconds between saves of last.ckpt
  --json                 print the summary of the finished run as JSON
  --print_config         print the whole configuration and exit
  --data.global_batch N  images per step of all processes; batch size and accumulation follow
  --data.sampling.balanced true  draw rare classes as often as common ones
  --data.loading.on_error skip   skip unreadable images and count them, instead of stopping
  --data.labels tree     make nested folders, or paths in a CSV, a tree of classes
  --model.loss.function my_parts.loss
                         your own loss function; --data.augment.extra takes an augmentation
  --data.channels N      for images that are not RGB: gray, 16 bits, .npy, up to 16 channels
  --trainer.precision P  32-true, bf16-mixed, ...; default: what suits the hardware
  --trainer.logger NAME  tensorboard, wandb or mlflow, in addition to metrics.csv

Later -c files and options override earlier ones. `vit fit --help-all` lists every option with its
type and default."""


def run(args: list[str]) -> int:
    """Trains. Exit status 0 when the run and its evaluation are complete."""
    if not args or "-h" in args or "--help" in args:
        print(HELP)
        return 0
    as_json = "--json" in args
    words = Words([{"--help-all": "--help"}.get(arg, arg) for arg in args if arg != "--json"])
    if words.others:
        raise UserError(f"{words.others[0]!r} is not an option; `vit fit --help` lists them")

    from vit.runs.fit import fit  # heavy: imports lightning
    from vit.runs.options import Options

    run, closing = fit(Options(words))
    if not is_first_process():
        return 0
    if as_json and run.folder.exists():
        say(closing)
        print((run.folder / "summary.json").read_text(encoding="utf-8"), end="")
    else:
        show(closing)
    return 0
