"""`vit fit`: trains by a recipe, evaluates the best weights once, writes one run directory."""

from vit.console import is_first_process, say, show
from vit.errors import UserError
from vit.runs.short_names import Words

HELP = """\
usage: vit fit --data MY_PHOTOS [-c RECIPE] [OPTIONS]

Trains a model by a recipe (finetune, unless -c names another; `vit recipes` lists them), then
evaluates the best weights on the test images. Everything goes into one directory under runs/:
checkpoints, metrics, pictures, report.html and model/, which `vit classify` and vit.load read.

short names:
  --data X               your images: a folder per class, with or without train/ val/ test/; a CSV
                         or Parquet file with columns path, label, split; or a data set's name
  --pretrained X         weights to start from: a name (`vit models --weights`), file or run
  --arch NAME            architecture (`vit models` lists them)
  --lr X                 learning rate
  --epochs N             or --steps N, or --trainer.max_time 00:00:05:00
  --batch-size N         images per step and process; auto: as many as fit on the GPU
  --image-size N         pixels
  --devices N            processes or GPUs; on CPUs add --trainer.accelerator cpu
  --seed N               order, augmentation, initial weights and splits

more options:
  --run_dir DIR          where to write; the run that is there is resumed
  --resume never|PATH    start a new run; or resume that run or checkpoint (--ckpt_path is the same)
  --patience N           end when N validations have brought no better score
  --save_every N         seconds between saves of last.ckpt
  --json                 print the summary of the finished run as JSON
  --print_config         print the whole configuration and stop
  --data.global_batch N  images per step of all processes; batch size and accumulation follow
  --data.sampling.balanced true
                         draw rare classes as often as common ones
  --data.loading.on_error skip
                         leave out unreadable images, and count them, instead of stopping
  --data.labels tree     nested folders, or paths in a CSV, are classes in a tree
  --data.label_separator ";"
                         separator of several labels in a CSV; "|" is the default
  --model.loss.function my_parts.loss
                         a loss of your own, and with --data.augment.extra an augmentation
  --data.channels N      images that are not RGB: gray, 16 bits, .npy, up to 16 channels
  --trainer.precision P  32-true, bf16-mixed, ...; by default what the hardware is good at
  --trainer.logger NAME  tensorboard, wandb or mlflow, in addition to metrics.csv

Later -c files and options win. `vit fit --help-all` lists every option, its type and default."""


def run(args: list[str]) -> int:
    """Trains. Exit status 0 when the run and its evaluation are complete."""
    if not args or "-h" in args or "--help" in args:
        print(HELP)
        return 0
    if not args[0].startswith("-"):  # timm's DIR, or ultralytics' data=DIR
        name, equals, value = args[0].partition("=")
        option = f"--{name} {value}" if equals else f"--data {name}"
        raise UserError(f"{args[0]!r} is not an option; type {option}")
    as_json = "--json" in args
    words = Words([{"--help-all": "--help"}.get(arg, arg) for arg in args if arg != "--json"])

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
