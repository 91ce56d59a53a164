"""Photos per second, from a folder to a CSV file, by `vit classify` and by peers.

    python -m benchmarks.speed.folder_speed PHOTOS [--count 2000] [--rounds 3] [--quick]

The photos of PHOTOS (about 500 pixels wide) are copied under new names until there are enough. All
have the same random weights of ViT-S/16, in their own layouts from `vit convert`, and write the
class and probability of every photo. Each run is a process of its own on all cores; its wall-clock
time counts from start to end. Every setting of every arm is tried on a fifth of the photos, and the
fastest goes into the rounds, in which arms alternate.

Streaming is as ultralytics documents `model.predict(source=folder, stream=True, batch=N)`: a
generator of results; `batch`, 1 by default, holds for folders; half precision is for GPUs; an
exported OpenVINO model may take the network's place. Its loader reads in the same process. Here
Pillow reads instead of OpenCV, and the network is timm's with the common weights.
"""

import csv
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.lib.harness import (
    Rows,
    Times,
    arguments,
    document,
    has_bfloat16,
    installed,
    publish,
    ratio,
    results_name,
    timed,
)
from benchmarks.speed.startup import random_weights
from vit.hardware import available_cores

VIT = [sys.executable, "-m", "vit"]
OURS = "vit classify"
# What an arm needs besides this package.
NEEDS = {
    OURS: (),
    "vit classify, OpenVINO": ("openvino",),
    "transformers pipeline": ("transformers",),
    "timm loop": ("timm",),
    "streaming": ("timm",),
    "streaming, OpenVINO": ("timm", "openvino"),
}
Settings = dict[str, Any]
Answer = tuple[str, float]
"""Class and probability."""


def grid(**choices: list[Any]) -> list[Settings]:
    """All combinations."""
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def settings(arm: str, *, quick: bool) -> list[Settings]:
    """What may be fastest; float32 comes first."""
    precision = ["float32", "bfloat16"] if has_bfloat16() and not quick else ["float32"]
    workers = [available_cores()] if quick else [0, available_cores()]
    if arm.startswith(OURS):
        return grid(precision=precision)
    if arm == "timm loop":
        layouts = [False] if quick else [False, True]
        return grid(precision=precision, batch=[32], workers=workers, channels_last=layouts)
    if arm == "transformers pipeline":
        return grid(precision=precision, batch=[32] if quick else [8, 32], workers=workers)
    return grid(batch=[16] if quick else [1, 16, 32])


class Photos(Dataset[Tensor]):
    """Photos as timm's transform of its model makes them."""

    def __init__(self, paths: list[str], model: Any) -> None:
        from timm.data.config import resolve_model_data_config
        from timm.data.transforms_factory import create_transform

        self.paths = paths
        self.transform: Any = create_transform(**resolve_model_data_config(model))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(Image.open(self.paths[index]).convert("RGB"))


def timm_model(folder: Path) -> Any:
    """timm's model with the common weights."""
    import timm

    return timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True).eval()


def best(model: Any, logits: Tensor) -> Iterator[Answer]:
    """The first class of each image."""
    names = model.pretrained_cfg["label_names"]
    top = logits.float().softmax(-1).max(-1)
    for index, probability in zip(top.indices.tolist(), top.values.tolist(), strict=True):
        yield names[index], probability


def timm_loop(folder: Path, paths: list[str], given: Settings) -> Iterator[Answer]:
    """Workers read or, in streaming, the process that computes."""
    model, program = timm_model(folder), None
    photos = Photos(paths, model)
    kind: dict[str, Any] = {"dtype": getattr(torch, given.get("precision", "float32"))}
    if given.get("channels_last"):
        kind["memory_format"] = torch.channels_last
    if given["openvino"]:
        import openvino

        program = openvino.Core().compile_model(folder / "streaming.xml", "CPU")
    model.to(**kind)
    for images in DataLoader(photos, given["batch"], num_workers=given.get("workers", 0)):
        if program:
            yield from best(model, torch.from_numpy(program(images.numpy())[0]))
        else:
            yield from best(model, model(images.to(**kind)))


def transformers_pipeline(folder: Path, paths: list[str], given: Settings) -> Iterator[Answer]:
    """Its preprocessing runs in the workers."""
    from transformers import pipeline

    place, kind = str(folder / "huggingface"), getattr(torch, given["precision"])
    pipe: Any = pipeline("image-classification", model=place, dtype=kind, device="cpu")
    sizes = {"batch_size": given["batch"], "num_workers": given["workers"]}
    for [first] in pipe(paths, top_k=1, **sizes):
        yield first["label"], first["score"]


def answer_alone(arm: str, folder: Path, photos: Path, out: Path, given: Settings) -> None:
    """A peer's whole process."""
    peer = transformers_pipeline if arm == "transformers pipeline" else timm_loop
    paths = sorted(map(str, photos.iterdir()))
    given["openvino"] = arm.endswith("OpenVINO")
    with out.open("w", newline="") as stream, torch.inference_mode():
        writer = csv.writer(stream)
        writer.writerow(("image", "class", "probability"))
        for path, answer in zip(paths, peer(folder, paths, given), strict=True):
            writer.writerow((path, *answer))


def run(arm: str, folder: Path, photos: Path, given: Settings) -> tuple[float, dict[str, str]]:
    """Seconds of a process, and its answers by the names of photos."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out.csv"
        command = [
            sys.executable,
            "-m",
            "benchmarks.speed.folder_speed",
            photos,
            "--alone",
            arm,
            folder,
            out,
            json.dumps(given),
        ]
        if arm.startswith(OURS):
            model = folder / ("model.xml" if arm.endswith("OpenVINO") else "model")
            command = [*VIT, "classify", model, photos, "--out", out]
            command += ["--precision", given["precision"]]
        _, times = timed(command)
        with out.open(newline="") as stream:
            return times["seconds"], {
                Path(r["image"]).name: r["class"] for r in csv.DictReader(stream)
            }


def prepare(folder: Path, source: Path, count: int) -> None:
    """Photos, a fifth of them, and the model in every layout."""
    files = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"there are no JPEG files in {source}")
    for number, file in zip(range(count), itertools.cycle(files)):
        for name in ("all", "fifth") if number % 5 == 0 else ("all",):
            (folder / name).mkdir(exist_ok=True)
            shutil.copyfile(file, folder / name / f"{number:06}.jpg")
    random_weights(folder, "vit_s16", "vit_small_patch16_224")
    convert = [*VIT, "convert", folder / "model", folder / "huggingface", "--to", "huggingface"]
    subprocess.run(convert, check=True, capture_output=True)
    if find_spec("openvino"):
        import openvino

        export = [*VIT, "export", folder / "model", folder / "model.xml", "--format", "openvino"]
        subprocess.run(export, check=True, capture_output=True)
        if find_spec("timm"):
            example = torch.zeros(2, 3, 224, 224)
            model = openvino.convert_model(timm_model(folder), example_input=example)
            openvino.save_model(model, folder / "streaming.xml", compress_to_fp16=False)


def measure(folder: Path, rounds: int, *, quick: bool) -> tuple[Rows, dict[str, Any]]:
    """One row per arm, and the seconds of all settings."""
    rows: dict[str, dict[str, Any]] = {arm: {"arm": arm} for arm in NEEDS}
    tried: dict[str, Any] = {}
    reference: dict[str, str] = {}
    for arm, row in rows.items():
        if missing := [name for name in NEEDS[arm] if not find_spec(name)]:
            row["not_run"] = f"{missing[0]} is not installed"
            continue
        fifth, choices = folder / "fifth", settings(arm, quick=quick)
        runs = [(given, *run(arm, folder, fifth, given)) for given in choices]
        reference = reference or runs[0][2]
        tried[arm] = [{**given, "seconds": seconds} for given, seconds, _ in runs]
        row["settings"], _, answers = min(runs, key=lambda each: each[1])
        same = sum(answers[name] == named for name, named in reference.items())
        row["equal_answers"] = same / len(reference)
        print(f"{arm}: {row['settings']}", flush=True)
    seconds: dict[str, list[float]] = {arm: [] for arm in tried}
    for _, arm in itertools.product(range(rounds), tried):
        seconds[arm].append(run(arm, folder, folder / "all", rows[arm]["settings"])[0])
        print(f"{arm:24} {seconds[arm][-1]:8.1f} s", flush=True)
    count = len(list((folder / "all").iterdir()))
    times = {arm: Times(tuple(values)) for arm, values in seconds.items()}
    peers = [times[arm] for arm in times if not arm.startswith(OURS)]
    fastest = min(peers, key=lambda each: each.median, default=times[OURS])
    for arm, each in times.items():
        rows[arm] |= {"images_per_second": count / each.median, **ratio(each.ratios(fastest))}
    return list(rows.values()), tried


def main() -> None:
    """Measures, writes the file, prints the JSON."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("photos", type=Path, help="a folder of JPEG files")
    parser.add_argument("--count", type=int, default=2000, help="photos; default 2000")
    parser.add_argument("--alone", nargs=4, metavar="", help="a peer's process")
    options = parser.parse_args()
    if options.alone:
        arm, folder, out, given = options.alone
        answer_alone(arm, Path(folder), options.photos, Path(out), json.loads(given))
        return
    rounds, count = (1, 20) if options.quick else (options.rounds, options.count)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), options.photos, count)
        rows, tried = measure(Path(name), rounds, quick=options.quick)
    content = document("folder_speed", rows, count=count, rounds=rounds, tried=tried)
    content["versions"] |= installed("timm", "transformers", "openvino")
    publish(content, options, results_name("folder_speed"))


if __name__ == "__main__":
    main()
