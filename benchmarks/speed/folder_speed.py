"""Photos per second, from a folder to a CSV file, by `vit classify` and by peers.

    python -m benchmarks.speed.folder_speed PHOTOS [--count 2000] [--arms int8] [--quick]

The photos of PHOTOS (about 500 pixels wide) are copied under new names until there are enough; they
are in the page cache. All have the same random weights of ViT-S/14, in their own layouts from
`vit convert`, and write the class and probability of every photo. Each run is a process of its own
on all cores; its wall-clock time counts from start to end. Every setting of every arm is tried on a
fifth of the photos, and the fastest goes into the rounds, in which arms alternate.

Without start-up, a photo costs the difference of the runs on all photos and on a fifth of them, in
wall-clock and in CPU seconds of all processes, over the photos between. *Of the model* is that of
the int8 file fed from memory, by the same engine in batches of 32, over that of the arm.
`vit classify` is to reach 0.85. CPU time does not depend on other programs.

By hand is OpenVINO's own queue of requests, fed by threads that read, with the same int8 file.

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
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
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
EIGHT = "vit classify, OpenVINO int8"
BY_HAND = "OpenVINO by hand, int8"
MODEL = "the int8 model alone"
BATCH = 32
"""Of `vit classify` with an exported file."""
# What an arm needs besides this package.
NEEDS = {
    OURS: (),
    "vit classify, OpenVINO": ("openvino",),
    EIGHT: ("openvino", "nncf"),
    MODEL: ("openvino", "nncf"),
    BY_HAND: ("openvino", "nncf"),
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
    if arm in (EIGHT, MODEL):
        return [{}]
    if arm == BY_HAND:
        hints = ["THROUGHPUT"] if quick else ["THROUGHPUT", "LATENCY"]
        return grid(hint=hints, batch=[8] if quick else [1, 8, 32])
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


def decoded(path: str) -> np.ndarray:
    """A photo as the int8 file takes it, by Pillow: `h w c`."""
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    width, height = (int(side * scale) for side in image.size)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image.crop((left, top, left + 224, top + 224)))


def by_hand(folder: Path, paths: list[str], given: Settings) -> Iterator[Answer]:
    """Requests that run beside each other, and threads that read ahead of them."""
    import openvino

    core = openvino.Core()
    hint = {"PERFORMANCE_HINT": given["hint"], "INFERENCE_PRECISION_HINT": "f32"}
    model = core.read_model(folder / "int8.xml")
    names = json.loads(model.get_rt_info(["vit"]).value)["classes"]
    program = core.compile_model(model, "CPU", hint)
    answers: dict[int, np.ndarray] = {}
    queue = openvino.AsyncInferQueue(program)
    queue.set_callback(
        lambda request, start: answers.update(
            {start: request.get_tensor("probabilities").data.copy()}
        )
    )
    size = given["batch"]
    ahead: deque[Any] = deque()
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(paths), size):
            ahead.append((start, [pool.submit(decoded, p) for p in paths[start : start + size]]))
            if len(ahead) > 2:
                begin, batch = ahead.popleft()
                queue.start_async({"images": np.stack([each.result() for each in batch])}, begin)
        for begin, batch in ahead:
            queue.start_async({"images": np.stack([each.result() for each in batch])}, begin)
    queue.wait_all()
    for row in np.concatenate([answers[start] for start in sorted(answers)]):
        yield names[int(row.argmax())], float(row.max())


def model_alone(folder: Path, paths: list[str], given: Settings) -> Iterator[Answer]:
    """The engine of `vit classify`, with as many copies of one batch of photos."""
    from vit.extensions.serving.engines import open_engine

    engine = open_engine(folder / "int8.xml")
    pixels = np.stack([decoded(path) for path in paths[:BATCH]])
    names = engine.description.classes or []
    for start in range(0, len(paths), BATCH):
        named = engine.run(pixels[: len(paths) - start])["probabilities"]
        for row in named:
            yield names[int(row.argmax())], float(row.max())


def answer_alone(arm: str, folder: Path, photos: Path, out: Path, given: Settings) -> None:
    """A peer's whole process."""
    peers = {"transformers pipeline": transformers_pipeline, BY_HAND: by_hand, MODEL: model_alone}
    peer = peers.get(arm, timm_loop)
    paths = sorted(map(str, photos.iterdir()))
    given["openvino"] = arm.endswith("OpenVINO")
    with out.open("w", newline="") as stream, torch.inference_mode():
        writer = csv.writer(stream)
        writer.writerow(("image", "class", "probability"))
        for path, answer in zip(paths, peer(folder, paths, given), strict=True):
            writer.writerow((path, *answer))


def run(
    arm: str, folder: Path, photos: Path, given: Settings
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds and CPU seconds of a process, and its answers by the names of photos."""
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
            files = {"vit classify, OpenVINO": "model.xml", EIGHT: "int8.xml"}
            command = [*VIT, "classify", folder / files.get(arm, "model"), photos, "--out", out]
            command += [f"--{name}={value}" for name, value in given.items()]
        _, times = timed(command)
        with out.open(newline="") as stream:
            return times, {Path(r["image"]).name: r["class"] for r in csv.DictReader(stream)}


def prepare(folder: Path, source: Path, count: int) -> None:
    """Photos, a fifth of them, and the model in every layout."""
    files = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"there are no JPEG files in {source}")
    for number, file in zip(range(count), itertools.cycle(files)):
        for name in ("all", "fifth") if number % 5 == 0 else ("all",):
            (folder / name).mkdir(exist_ok=True)
            shutil.copyfile(file, folder / name / f"{number:06}.jpg")
    random_weights(folder, "vit_s16", "vit_small_patch16_224", 14)
    convert = [*VIT, "convert", folder / "model", folder / "huggingface", "--to", "huggingface"]
    subprocess.run(convert, check=True, capture_output=True)
    if find_spec("openvino"):
        import openvino

        export = [*VIT, "export", folder / "model", folder / "model.xml", "--format", "openvino"]
        subprocess.run(export, check=True, capture_output=True)
        if find_spec("nncf"):
            export_in_8_bits(folder)
        if find_spec("timm"):
            example = torch.zeros(2, 3, 224, 224)
            model = openvino.convert_model(timm_model(folder), example_input=example)
            openvino.save_model(model, folder / "streaming.xml", compress_to_fp16=False)


def export_in_8_bits(folder: Path) -> None:
    """FOLDER/int8.xml, calibrated on 32 photos: what it loses does not matter here."""
    place = folder / "calibration" / "class 0"
    place.mkdir(parents=True)
    for file in itertools.islice(itertools.cycle((folder / "all").iterdir()), 32):
        shutil.copyfile(file, place / f"{len(list(place.iterdir()))}.jpg")
    command = [*VIT, "export", folder / "model", folder / "int8.xml", "--int8", place.parent]
    command += ["--check", place.parent, "--max-drop", "100"]
    subprocess.run(command, check=True, capture_output=True)


def measure(
    folder: Path, rounds: int, arms: list[str], *, quick: bool
) -> tuple[Rows, dict[str, Any]]:
    """One row per arm, and the seconds of all settings."""
    rows: dict[str, dict[str, Any]] = {arm: {"arm": arm} for arm in arms}
    tried: dict[str, Any] = {}
    reference: dict[str, str] = {}
    for arm, row in rows.items():
        if missing := [name for name in NEEDS[arm] if not find_spec(name)]:
            row["not_run"] = f"{missing[0]} is not installed"
            continue
        fifth, choices = folder / "fifth", settings(arm, quick=quick)
        runs = [(given, *run(arm, folder, fifth, given)) for given in choices]
        reference = reference or runs[0][2]
        tried[arm] = [{**given, **times} for given, times, _ in runs]
        row["settings"], _, answers = min(runs, key=lambda each: each[1]["seconds"])
        if arm != MODEL:  # which has one batch again and again
            same = sum(answers[name] == named for name, named in reference.items())
            row["equal_answers"] = same / len(reference)
        print(f"{arm}: {row['settings']}", flush=True)
    whole: dict[str, list[float]] = {arm: [] for arm in tried}
    cost: dict[str, dict[str, list[float]]] = {
        clock: {arm: [] for arm in tried} for clock in ("seconds", "cpu_seconds")
    }
    count, few = (len(list((folder / name).iterdir())) for name in ("all", "fifth"))
    for _, arm in itertools.product(range(rounds), tried):
        part, times = (
            run(arm, folder, folder / name, rows[arm]["settings"])[0] for name in ("fifth", "all")
        )
        whole[arm].append(times["seconds"])
        for clock, values in cost.items():
            values[arm].append((times[clock] - part[clock]) / (count - few))
        spent = " ".join(f"{1e3 * values[arm][-1]:8.1f}" for values in cost.values())
        print(f"{arm:28} {times['seconds']:8.1f} s; per photo {spent} ms, CPU ms", flush=True)
    together = {arm: Times(tuple(values)) for arm, values in whole.items()}
    peers = [each for arm, each in together.items() if not arm.startswith(OURS) and arm != MODEL]
    fastest = min(peers, key=lambda each: each.median, default=together[next(iter(together))])
    for arm, each in together.items():
        rows[arm] |= {"images_per_second": count / each.median, **ratio(each.ratios(fastest))}
        if MODEL in together:
            for clock, values in cost.items():
                mine, model = (Times(tuple(values[name])) for name in (arm, MODEL))
                rows[arm]["of_model" if clock == "seconds" else "of_model_cpu"] = ratio(
                    mine.ratios(model)
                )
    return list(rows.values()), tried


def main() -> None:
    """Measures, writes the file, prints the JSON."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("photos", type=Path, help="a folder of JPEG files")
    parser.add_argument("--count", type=int, default=2000, help="photos; default 2000")
    parser.add_argument("--arms", default="", help="only arms with this word, such as int8")
    parser.add_argument("--alone", nargs=4, metavar="", help="a peer's process")
    options = parser.parse_args()
    if options.alone:
        arm, folder, out, given = options.alone
        answer_alone(arm, Path(folder), options.photos, Path(out), json.loads(given))
        return
    rounds, count = (1, 20) if options.quick else (options.rounds, options.count)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), options.photos, count)
        arms = [arm for arm in NEEDS if options.arms in arm]
        rows, tried = measure(Path(name), rounds, arms, quick=options.quick)
    facts = {"model": "ViT-S/14", "count": count, "rounds": rounds, "only": options.arms}
    content = document("folder_speed", rows, tried=tried, **facts)
    content["versions"] |= installed("timm", "transformers", "openvino", "nncf")
    publish(content, options, results_name("folder_speed"))


if __name__ == "__main__":
    main()
