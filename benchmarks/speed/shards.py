"""Images per second from folders, tar shards and Parquet, and by webdataset and litdata.

    PYTHONPATH=PEERS python -m benchmarks.speed.shards PHOTOS --small CIFAR [--rounds 3] [--quick]

PHOTOS and CIFAR are folders of JPEG files, which are copied under new names until there are enough.
PEERS is where `pip install --target PEERS --no-deps webdataset litdata` and what these import have
been put; an arm without its package is left out.

Every arm goes through all images in a random order of its kind, in one worker process, which makes
the same training crops by the same code (ours), so that arms differ in how they find and fetch the
bytes; the main process counts. The limit is that code alone on bytes in memory, on one core.
Wall-clock time; arms alternate, a round of warm-up first, so that files on disk are in the memory
of the system. The http server is on this machine and waits 5 ms before each answer.
"""

import itertools
import json
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vit
from benchmarks.lib.harness import (
    Rows,
    arguments,
    document,
    installed,
    publish,
    ratio,
    results_name,
    take_turns,
)
from vit.data.photo import Photo
from vit.data.settings import Loading, Splitting
from vit.data.transforms import sample_bits
from vit.extensions.sources import pack

LATENCY = 0.005
BATCH = 64
SHARD_BYTES = 32 * 2**20
ROW_GROUP = 100
"""Rows of a row group with pictures, as Hugging Face's library writes them."""
SIZES = {"photos": 224, "small": 32}
"""Pixels of the crops."""
Arms = dict[str, Callable[[], int]]
"""Name -> one pass; it returns the number of images."""


class SlowFiles(BaseHTTPRequestHandler):
    """Answers for files of the working directory, whole or in part, after LATENCY."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        time.sleep(LATENCY)
        path = Path(self.path.lstrip("/"))
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(asked[1]), int(asked[2] or size)) if asked else (0, size)
        last = min(last, size - 1)
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if with_body:
            with path.open("rb") as file:
                self.connection.sendfile(file, first, last + 1 - first)

    def log_message(self, format: str, *values: Any) -> None:
        pass


def serve(folder: Path, port: Any) -> None:
    """Serves a folder on a port that it sends."""
    os.chdir(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowFiles)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(folder, theirs), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ours.recv()}"
    process.terminate()


@dataclass
class Crops:
    """Bytes of a file and its number -> uint8 `c h w`, as `vit fit` makes them."""

    dataset: Any

    def __call__(self, content: bytes, number: int = 0) -> Tensor:
        photo = Photo(content)
        preprocess, augment = self.dataset.preprocess, self.dataset.augment
        bits = sample_bits(0, 0, number, 0)
        values = {"mean": preprocess.mean, "std": preprocess.std}
        return augment(photo, bits, preprocess.image_size, **values)


def copies(source: Path, target: Path, count: int) -> list[Path]:
    """So many files of two classes."""
    files = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"there are no JPEG files in {source}")
    made = []
    for number, file in zip(range(count), itertools.cycle(files)):
        made.append(target / "train" / "ab"[number % 2] / f"{number:06}.jpg")
        made[-1].parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, made[-1])
    return made


def write_parquet(paths: list[Path], target: Path) -> None:
    """As Hugging Face's library would write them, shuffled like shards."""
    import pyarrow
    from pyarrow import parquet

    order = torch.randperm(len(paths), generator=torch.Generator().manual_seed(0)).tolist()
    images = [{"bytes": paths[at].read_bytes(), "path": paths[at].name} for at in order]
    labels = ["ab".index(paths[at].parent.name) for at in order]
    features = {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    table = pyarrow.table({"image": images, "label": labels}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    target.mkdir()
    file = target / "train-00000-of-00001.parquet"
    parquet.write_table(table, file, row_group_size=ROW_GROUP)


def images_of(root: Path | str, pixels: int, **options: Any) -> vit.ImageData:
    """All images of a source in one worker."""
    return vit.ImageData(
        root=str(root),
        image_size=pixels,
        batch_size=BATCH,
        splits=Splitting(val_fraction=0, test_fraction=0),
        loading=Loading(num_workers=1, cache="none"),
        **options,
    )


def consume(loader: Iterable[Any]) -> int:
    return sum(len(batch[0]) for batch in loader)


def ours(data: vit.ImageData, cache: Path | None = None) -> int:
    """One epoch; with `cache` the first one, without copies of shards."""
    for copy in cache.glob("shards/*.tar") if cache else ():
        copy.unlink()
    return consume(data.train_dataloader())


def of_webdataset(urls: list[str], crops: Crops) -> int:
    """Shards in random order, and a buffer of 1,000 images."""
    import webdataset

    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls)).shuffle(1000)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(crops, int).batched(BATCH)
    return consume(webdataset.WebLoader(dataset, batch_size=None, num_workers=1))


def whole_file(path: str) -> dict[str, Any]:
    """A sample of litdata."""
    return {"image": Path(path).read_bytes(), "class": "ab".index(Path(path).parent.name)}


def write_litdata(paths: list[Path], target: Path) -> None:
    from litdata import optimize

    names = [str(path) for path in paths]
    options = {"chunk_bytes": SHARD_BYTES, "num_workers": 1, "start_method": "fork"}
    optimize(whole_file, names, str(target), **options)


def of_litdata(folder: Path, crops: Crops) -> int:
    """Its own format, chunks and loader."""
    from litdata import StreamingDataLoader, StreamingDataset

    class Cropped(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[Tensor, int]:
            sample = super().__getitem__(index)
            return crops(sample["image"]), sample["class"]

    dataset = Cropped(str(folder), shuffle=True)
    return consume(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=1))


def limit(contents: list[bytes], crops: Crops) -> int:
    """The work itself, in this process."""
    for start in range(0, len(contents), BATCH):
        torch.stack([crops(content) for content in contents[start : start + BATCH]])
    return len(contents)


def arms_of(paths: list[Path], place: Path, address: str, pixels: int) -> tuple[Arms, list[str]]:
    """The passes, and the arms that are left out."""
    folder, tars, cache = place / "folder", place / "tars", Path(os.environ["VIT_CACHE"])
    tars.mkdir()
    shards = pack.pack(str(folder), tars)
    write_parquet(paths, place / "parquet")
    remote = f"{address}/{place.name}/tars/train-{{00000..{len(shards) - 1:05d}}}.tar"
    ranges = images_of(remote, pixels)
    ranges.splits.train.items.whole = False  # pyright: ignore
    files = images_of(folder, pixels)
    crops = Crops(files._image_dataset("train", training=True))
    names = [shard.path.name for shard in shards]
    arms: Arms = {
        "decoding alone": partial(limit, [path.read_bytes() for path in paths], crops),
        "folder": partial(ours, files),
        "tar": partial(ours, images_of(tars, pixels)),
        "tar, blocks": partial(ours, images_of(tars, pixels, shuffle="blocks")),
        "Parquet": partial(ours, images_of(place / "parquet", pixels)),
        "Parquet, blocks": partial(ours, images_of(place / "parquet", pixels, shuffle="blocks")),
        "tar over http, first epoch": partial(ours, images_of(remote, pixels), cache),
        "tar over http, next epochs": partial(ours, images_of(remote, pixels)),
        "tar over http, no copies": partial(ours, ranges),
    }
    if find_spec("webdataset"):
        arms["webdataset"] = partial(of_webdataset, [str(tars / name) for name in names], crops)
        urls = [f"{address}/{place.name}/tars/{name}" for name in names]
        arms["webdataset over http"] = partial(of_webdataset, urls, crops)
    if find_spec("litdata"):
        write_litdata(paths, place / "litdata")
        arms["litdata"] = partial(of_litdata, place / "litdata", crops)
    return arms, [name for name in ("webdataset", "litdata") if not find_spec(name)]


def measure(name: str, arms: Arms, rounds: int) -> Rows:
    """A row per arm."""
    counts: dict[str, int] = {}

    def counted(arm: str, run: Callable[[], int]) -> None:
        counts[arm] = run()

    calls = {arm: partial(counted, arm, run) for arm, run in arms.items()}
    times = take_turns(name, calls, rounds, shortest=0, clock="wall")

    def against(arm: str, other: str) -> dict[str, float]:
        scale = counts[arm] / counts[other]
        return ratio([scale * each for each in times[arm].ratios(times[other])])

    rows = []
    for arm, each in times.items():
        row = {"images": name, "arm": arm, "count": counts[arm]}
        row["images_per_second"] = counts[arm] / each.median
        row["of_limit"] = against(arm, "decoding alone")
        row["over_peer"] = {}
        peer = "webdataset over http" if "http" in arm else "webdataset"
        for other in (peer, "litdata"):
            if other in times and not arm.startswith(("webdataset", "litdata", "decoding")):
                row["over_peer"][other] = against(arm, other)
        rows.append(row)
        print(f"  {arm:28} {row['images_per_second']:8,.0f}/s", flush=True)
    return rows


def main() -> None:
    """Measures, writes the file, prints the JSON."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("photos", type=Path, help="a folder of JPEG files")
    parser.add_argument("--small", type=Path, help="a folder of small JPEG files")
    parser.add_argument("--count", type=int, default=768, help="photos; default 768")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, count = (1, 2 * BATCH) if options.quick else (options.rounds, options.count)
    sources = {"photos": options.photos, "small": options.small}
    rows, left_out = [], []
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as address:
        os.environ["VIT_CACHE"] = str(Path(name) / "cache")
        pack.MOST_BYTES = SHARD_BYTES if not options.quick else 2**20
        for kind, source in sources.items():
            if source is None:
                continue
            place = Path(name) / kind
            number = count if kind == "photos" else 4 * count
            paths = copies(source, place / "folder", number)
            arms, left_out = arms_of(paths, place, address, SIZES[kind])
            rows += measure(kind, arms, rounds)
    facts = {"rounds": rounds, "latency": LATENCY, "sizes": SIZES, "left_out": left_out}
    content = document("shards", rows, **facts)
    content["versions"] |= installed("webdataset", "litdata", "pyarrow")
    publish(content, options, results_name("shards"))


if __name__ == "__main__":
    main()
