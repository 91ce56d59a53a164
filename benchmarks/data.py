"""Images per second and core from files to normalised batches, compared with torchvision.

    python benchmarks/data.py PHOTOS --make-sizes sizes      # sizes/500, sizes/760, sizes/2000
    python benchmarks/data.py sizes/500 sizes/760 sizes/2000 --cifar cifar10/train --out FILE.json

Each folder has one folder per class. One process, one thread, CPU time, a DataLoader without
workers. The variants alternate in every round, and ratios are computed within a round. The first
round is a warm-up. Every variant produces a normalised float32 batch with the same distribution of
crops:

- torchvision: ImageFolder, RandomResizedCrop, flip, ToTensor, Normalize on Pillow images
- torchvision v2: the same on the tensors of decode_image, as its documentation recommends
- vit: ImageDataset and its loader, uint8 batches, normalised by Preprocess

Evaluation pixels are compared with torchvision's, training crops with Pillow's crop and resize of
the whole image. The last line of output is one JSON document.
"""

import argparse
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from vit.compute.timing import Call, in_turns, num_turns
from vit.console import Meter
from vit.data.dataset import ImageDataset
from vit.data.decode import open_image
from vit.data.loaders import make_loader
from vit.data.module import ImageData, InputFormat
from vit.data.options import Loading, Splitting
from vit.data.photo import Photo, scale_of
from vit.data.sampler import TrainBatchSampler
from vit.data.sources import ImageSet, PathList
from vit.data.transforms import TrainTransform, inception_box
from vit.hardware import hardware, versions
from vit.preprocessing import Preprocess, to_tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AREA = (0.08, 1.0)
SIZE, BATCH = (224, 224), 64
CIFAR_BATCH = 128

Variants = dict[str, Callable[[], int]]
"""Name -> one pass; it returns the number of images."""


def main() -> None:
    """Measures according to the arguments, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="+", help="folders of photos, each with one folder per class"
    )
    parser.add_argument("--make-sizes", metavar="DIR", help="write test folders there and exit")
    parser.add_argument(
        "--cifar", metavar="DIR", help="folder of small images of one size, one folder per class"
    )
    parser.add_argument("--images", type=int, default=160, help="maximum number from each folder")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--out", help="file for the JSON document")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)  # decode_image
    if args.make_sizes:
        make_sizes(Path(args.folders[0]), Path(args.make_sizes))
        return
    photos = {Path(folder).name: photo_results(folder, args) for folder in args.folders}
    document = {
        "what": "data",
        "date": time.strftime("%Y-%m-%d"),
        "unit": "images per second of CPU time, one thread; ratios to torchvision within a round",
        "settings": {"image_size": SIZE, "batch_size": BATCH, "area": AREA, "rounds": args.repeats},
        "hardware": hardware(),
        "versions": versions(),
        "photos": photos,
    }
    if args.cifar:
        document["small_images_in_memory"] = cifar_results(args.cifar, args)
    text = json.dumps(document)
    if args.out:
        Path(args.out).write_text(text + "\n")
    print(text)


def make_sizes(source: Path, target: Path) -> None:
    """All photos below `source`, the largest sixth, and every twentieth four times as large."""
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    images = {path: open_image(path) for path in paths}
    by_area = sorted(paths, key=lambda path: -images[path].width * images[path].height)
    for name, chosen in {"500": paths, "760": by_area[: max(1, len(paths) * 80 // 500)]}.items():
        (target / name / "photos").mkdir(parents=True)
        for path in chosen:
            (target / name / "photos" / path.name).write_bytes(path.read_bytes())
    (target / "2000" / "photos").mkdir(parents=True)
    for path in paths[::20]:
        image = images[path]
        large = image.resize((4 * image.width, 4 * image.height), Image.Resampling.BICUBIC)
        large.save(target / "2000" / "photos" / f"{path.stem}.jpg", quality=85)


def measure(variants: Variants, rounds: int) -> dict[str, Any]:
    """Images per second of each variant, and its ratio to the first one, round by round."""
    counts: dict[str, int] = {}

    def seeded(name: str, run: Callable[[], int]) -> Call:
        """A pass with the seed of its round, so that all variants draw the same crops."""
        seeds = itertools.count()

        def call() -> None:
            torch.manual_seed(next(seeds))
            counts[name] = run()

        return call

    calls = {name: seeded(name, run) for name, run in variants.items()}
    with Meter("passes", num_turns(len(calls), rounds), "turns") as meter:
        times = in_turns(calls, rounds=rounds, clock="cpu", shortest=0, meter=meter)
    base = next(iter(times.values()))
    # Variants may process different numbers of images.
    first = next(iter(counts.values()))
    results = {}
    for name, each in times.items():
        rates = [counts[name] / seconds for seconds in each.values]
        ratios = [ratio * counts[name] / first for ratio in each.ratios(base)]
        results[name] = {"images_per_second": spread(rates), "ratio": spread(ratios)}
        low, middle, high = (results[name]["ratio"][key] for key in ("min", "median", "max"))
        rate = results[name]["images_per_second"]["median"]
        print(f"  {name:28} {rate:10,.0f}   x {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)
    return results


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, smallest and largest, to four digits."""
    ordered = sorted(values)
    numbers = {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1]}
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def consume(loader: Iterable[Any], normalize: Callable[[Tensor], Tensor] | None = None) -> int:
    """Iterates once over the batches. Returns the number of images."""
    count = 0
    for images, *_ in loader:
        count += len(images if normalize is None else normalize(images))
    return count


def photo_results(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rates and pixel differences on one folder of photos."""
    classic = ImageFolder(folder, transforms.Compose(classic_steps(crop())))
    modern = ImageFolder(folder, modern_steps(), loader=read_tensor)
    chosen = list(range(0, len(classic), max(1, len(classic) // args.images)))[: args.images]
    paths = [classic.samples[index][0] for index in chosen]
    sides = [Photo(path) for path in paths]
    height, width = (statistics.median(getattr(s, k) for s in sides) for k in ("height", "width"))
    print(f"{folder}: {len(paths)} images, median {height:.0f} x {width:.0f} pixels", flush=True)

    preprocess = Preprocess(image_size=SIZE, crop_fraction=0.875, mean=MEAN, std=STD)
    evaluation = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    standard = ImageFolder(folder, transforms.Compose(classic_steps(evaluation)))
    return {
        "images": len(paths),
        "median_height": height,
        "median_width": width,
        "training": measure(
            {
                "torchvision": lambda: consume(DataLoader(Subset(classic, chosen), BATCH)),
                "torchvision v2": lambda: consume(DataLoader(Subset(modern, chosen), BATCH)),
                "vit": lambda: consume(training_loader(paths), preprocess.normalize),
            },
            args.repeats,
        ),
        "evaluation": measure(
            {
                "torchvision evaluation": lambda: consume(
                    DataLoader(Subset(standard, chosen), BATCH)
                ),
                "vit evaluation": lambda: consume(
                    evaluation_loader(paths, preprocess), preprocess.normalize
                ),
            },
            args.repeats,
        ),
        "evaluation_pixels": differences(
            (preprocess(open_image(path)), to_tensor(evaluation(open_image(path))))
            for path in paths
        ),
        "training_pixels": crop_differences(paths),
    }


def crop() -> Any:
    return transforms.RandomResizedCrop(SIZE, scale=AREA)


def classic_steps(crop: Any) -> list[Any]:
    flip = [transforms.RandomHorizontalFlip()] if isinstance(crop, torch.nn.Module) else []
    return [crop, *flip, transforms.ToTensor(), transforms.Normalize(MEAN, STD)]


def modern_steps() -> Any:
    return v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, scale=AREA, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(MEAN), list(STD)),
        ]
    )


def read_tensor(path: str) -> Tensor:
    return decode_image(path, mode=ImageReadMode.RGB)


def image_set(paths: list[str]) -> ImageSet:
    names = PathList(paths)
    return ImageSet(names, torch.zeros(len(paths), dtype=torch.int64).numpy(), names)


def training_loader(paths: list[str], num_workers: int = 0) -> Iterator[Any]:
    """The full batches of a randomly drawn epoch, so that each call has other crops."""
    transform = TrainTransform(crop_area=AREA)
    epoch = int(torch.randint(1000, (1,)))
    dataset = ImageDataset(
        image_set(paths), lambda photo: transform(photo, SIZE, mean=MEAN, std=STD), opener=Photo
    )
    progress: Any = SimpleNamespace(consumed_samples=0)
    sampler = TrainBatchSampler(
        len(paths), min(BATCH, len(paths)), seed=0, rank=0, world_size=1, progress=progress
    )
    progress.consumed_samples = epoch * sampler.samples_per_epoch
    loader = make_loader(
        dataset, num_workers=num_workers, image_size=SIZE, pin_memory=False, batch_sampler=sampler
    )
    return iter(loader)


def evaluation_loader(paths: list[str], preprocess: Preprocess) -> Iterator[Any]:
    dataset = ImageDataset(image_set(paths), preprocess)
    return iter(
        make_loader(dataset, num_workers=0, image_size=SIZE, pin_memory=False, batch_size=BATCH)
    )


def differences(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Peak signal-to-noise ratio in dB (100 where equal) and largest difference of uint8 images."""
    ratios, largest = [], 0
    for ours, theirs in pairs:
        error = ours.double() - theirs.double()
        ratios.append(10 * torch.log10(255**2 / error.square().mean().clamp(min=6.5e-6)).item())
        largest = max(largest, int(error.abs().max()))
    return {"images": len(ratios), "psnr": spread(ratios), "largest_difference": largest}


def crop_differences(paths: list[str]) -> dict[str, Any]:
    """Training crops against Pillow's crop and resize of the whole image, by decoding scale."""
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    torch.manual_seed(0)
    for path in paths:
        photo, image = Photo(path), open_image(path)
        top, left, height, width = inception_box(image.height, image.width, AREA)
        ours = photo.crop((top, left, height, width), SIZE, "bilinear")
        part = image.crop((left, top, left + width, top + height))
        theirs = to_tensor(part.resize(SIZE, Image.Resampling.BILINEAR))
        scale = scale_of(height, width, SIZE)
        pairs.setdefault(f"decoded at 1/{scale}", []).append((ours, theirs))
    return {scale: differences(images) for scale, images in sorted(pairs.items())}


def cifar_results(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Small images: ImageFolder against batches cropped in memory, with pad crop and flip."""
    side = open_image(ImageFolder(folder).samples[0][0]).height
    padded = transforms.RandomCrop(side, padding=4)
    files = ImageFolder(folder, transforms.Compose(classic_steps(padded)))
    chosen = torch.randperm(len(files))[: 16 * args.images].tolist()
    data = ImageData(
        root=folder,
        image_size=side,
        batch_size=CIFAR_BATCH,
        augment=TrainTransform(crop="pad", crop_padding=4),
        inputs=InputFormat(crop_fraction=1.0, mean=MEAN, std=STD),
        splits=Splitting(val_fraction=0, test_fraction=0),
        loading=Loading(num_workers=0),
    )
    start = time.process_time()
    loader = data.train_dataloader()
    decoding = time.process_time() - start
    print(f"{folder}: {len(files):,} images; decoded in {decoding:.2f} CPU seconds", flush=True)
    evaluation = data.evaluation_loader("train")
    return {
        "images": len(files),
        "decoding_cpu_seconds": float(f"{decoding:.4g}"),
        "training": measure(
            {
                "torchvision": lambda: consume(DataLoader(Subset(files, chosen), CIFAR_BATCH)),
                "vit": lambda: consume(loader, data.preprocess.normalize),
                "vit, no augmentation": lambda: consume(evaluation, data.preprocess.normalize),
            },
            args.repeats,
        ),
    }


if __name__ == "__main__":
    main()
