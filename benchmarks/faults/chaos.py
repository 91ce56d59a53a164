"""Kills a run at random moments, continues it by the same command, and compares the results.

    python -m benchmarks.faults.chaos [--kills 20] [--steps 300]

A minute or two on one core. A run of the recipe `quickstart` is left alone. The same command is
then killed with SIGKILL at random times, inside saves and inside validations, which the run shows
in shared memory, and typed again after each kill. Then files of the finished run are damaged: bits
are flipped, ends cut and lengthened. Writes as JSON what was killed where, whether weights, model/
and predictions are bitwise those of the run left alone, and what the damage came to.
"""

import hashlib
import io
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib.harness import arguments, document, publish

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import vit
from vit.cli.main import main as vit_main
from vit.errors import UserError
from vit.weights.archives import read_checkpoint
from vit.weights.weight_file import open_weights

PLACES = {"elsewhere": 0, "save": 1, "validation": 2}
SIZES = "{patch_size: 4, width: 32, depth: 2, mlp_dim: 64, num_heads: 2, drop_path: 0.1}"


def command(folder: str, steps: int, batch: str = "--data.batch_size=64", seed: int = 0) -> Any:
    """A small model on the digits, which saves at every end of an epoch of some 20 steps."""
    return [
        "fit", "-c", "quickstart", "--run_dir", folder, f"--trainer.max_steps={steps}",
        f"--model.architecture={SIZES}", f"--seed_everything={seed}", *batch.split(),
        "--trainer.max_epochs=-1", "--save_every=0", "--trainer.check_val_every_n_epoch=1",
        "--trainer.precision=32-true", "--trainer.accelerator=cpu", "--data.loading.num_workers=0",
    ]  # fmt: skip


def shown(owner: Any, name: str, place: int, where: Any, pause: float = 0) -> None:
    """Lets a function show in `where` that it runs, for at least `pause` seconds."""
    function = getattr(owner, name)

    def showing(*args: Any, **options: Any) -> Any:
        before, where.value = where.value, place
        try:
            time.sleep(pause)
            return function(*args, **options)
        finally:
            where.value = before

    setattr(owner, name, showing)


def start(args: list[str], where: Any) -> Any:
    """A forked process that runs the command quietly."""

    def work() -> None:
        with open("log.txt", "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        for owner, name in ((torch, "save"), (os, "fsync"), (os, "replace")):
            shown(owner, name, 1, where, pause=0.01)
        shown(vit.ImageClassifier, "validation_step", 2, where)
        os._exit(vit_main(args))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def ended(process: Any) -> None:
    """Waits for the process; SystemExit if it has failed."""
    process.join()
    if process.exitcode:
        raise SystemExit(f"exit status {process.exitcode}: {Path('log.txt').read_text()[-2000:]}")


def kill(args: list[str], place: str, draw: random.Random, longest: float) -> str | None:
    """Runs the command until the place or a random time; where it was killed, None if it ended."""
    where = multiprocessing.Value("i", 0)
    process = start(args, where)
    wanted, since = PLACES[place], time.monotonic()
    wait = draw.uniform(0, longest)
    while process.is_alive():
        late = time.monotonic() - since > wait
        if late and (not wanted or where.value == wanted):
            time.sleep(draw.uniform(0, 0.02) if wanted == 1 else 0)
            at = next(name for name, number in PLACES.items() if number == where.value)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            return at if process.exitcode == -signal.SIGKILL else None
        time.sleep(0.0005)
    ended(process)
    return None


def results(folder: Path) -> dict[str, str]:
    """SHA-256 of what a run leaves: of the tensors of its checkpoints, and of other files."""
    digests = {}
    for name in ("last", "best"):
        state = torch.load(folder / f"checkpoints/{name}.ckpt", weights_only=True)["state_dict"]
        digest = hashlib.sha256()
        for key in sorted(state):
            digest.update(key.encode() + state[key].numpy().tobytes())
        digests[f"{name}.ckpt"] = digest.hexdigest()
    for name in ("model/model.safetensors", "model/config.json", "predictions.csv"):
        digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return digests


def damage(file: Path, draw: random.Random, read: Callable[[], bool]) -> dict[str, int]:
    """Counts what 60 flips, 10 cuts and 4 tails come to."""
    content, outcomes = file.read_bytes(), Counter[str]()
    damaged = []
    for _ in range(60):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    damaged += [content[: draw.randrange(len(content))] for _ in range(10)]
    damaged += [content + tail for tail in (b"x", bytes(99), b"PK\5\6" + bytes(18), content)]
    for bad in damaged:
        file.write_bytes(bad)
        try:
            outcomes["harmless" if read() else "silent"] += 1
        except UserError as error:
            outcomes["reported" if "\n" not in str(error) else "several lines"] += 1
        except Exception as error:  # a traceback, to be counted
            outcomes[f"traceback {type(error).__name__}"] += 1
    file.write_bytes(content)
    return dict(outcomes)


def equal(a: Any, b: Any) -> bool:
    """Whether two checkpoints, or parts of them, hold the same."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def answers(model: Path) -> tuple[Any, str]:
    """Weights, class names and preprocessing of a model directory, and what loading it prints."""
    with redirect_stderr(io.StringIO()) as printed:
        loaded = vit.load(model)
    state = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    return [state, loaded.classes, str(loaded.preprocess)], printed.getvalue()


def damages(run: Path, draw: random.Random) -> dict[str, dict[str, int]]:
    """What damage to each file of a run comes to."""
    whole, _ = answers(run / "model")

    def checkpoint(file: Path, content: dict[str, Any]) -> bool:
        open_weights(file)
        return equal(read_checkpoint(file), content)

    def model() -> bool:
        again, printed = answers(run / "model")
        return equal(again[0], whole[0]) and (equal(again, whole) or bool(printed))

    counts = {}
    for name in ("last.ckpt", "best.ckpt"):
        file = run / "checkpoints" / name
        counts[name] = damage(file, draw, partial(checkpoint, file, read_checkpoint(file)))
    for name in ("model.safetensors", "config.json"):
        counts[f"model/{name}"] = damage(run / "model" / name, draw, model)
    return counts


def main() -> int:
    """Exit status 0 if nothing was lost."""
    parser = arguments(__doc__, quick=False)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        began = time.monotonic()
        ended(start(command("alone", options.steps), multiprocessing.Value("i", 0)))
        seconds = time.monotonic() - began
        expected = results(Path("alone"))
        killed: list[str] = []
        places = ["save"] * (options.kills // 2) + ["validation"] * (options.kills // 5)
        places += ["elsewhere"] * (options.kills - len(places))
        draw.shuffle(places)
        args = command("killed", options.steps)
        for place in places:
            at = kill(args, place, draw, longest=seconds * 2 / options.kills)
            print(f"kill {len(killed) + 1} of {options.kills}: {at}", flush=True)
            if at is None:
                break
            killed.append(at)
        ended(start(args, multiprocessing.Value("i", 0)))
        actual = results(Path("killed"))
        facts = {
            "steps": options.steps,
            "killed": dict(Counter(killed)),
            "exit_status": 0,
            "bitwise_equal": {name: actual[name] == expected[name] for name in expected},
            "hidden_files_left": sorted(p.name for p in Path("killed").rglob(".*")),
            "damage": damages(Path("killed"), draw),
            "seconds": round(time.monotonic() - began, 1),
        }
    publish(document("chaos", [], **facts), options, "results/chaos")
    harmless = all(set(count) <= {"reported", "harmless"} for count in facts["damage"].values())
    return 0 if all(facts["bitwise_equal"].values()) and harmless else 1


if __name__ == "__main__":
    sys.exit(main())
