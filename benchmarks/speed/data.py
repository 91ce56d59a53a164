"""Images per second and core from files to normalised batches, compared with torchvision.

    python -m benchmarks.speed.data PHOTOS --make-sizes sizes  # sizes/500, sizes/760, sizes/2000
    python -m benchmarks.speed.data sizes/500 sizes/760 sizes/2000 --cifar cifar10/train

Each folder has one folder per class. One process, one thread, CPU time, a DataLoader without
workers. The variants alternate in every round, and ratios are computed within a round. The first
round is a warm-up. Every variant produces a normalised float32 batch with the same distribution of
crops:

- torchvision: ImageFolder, RandomResizedCrop, flip, ToTensor, Normalize on Pillow images
- torchvision v2: the same on the tensors of decode_image, as its documentation recommends
- vit: the loader of ImageData, uint8 batches, normalised afterwards

Evaluation pixels are compared with torchvision's, training crops with Pillow's crop and resize of
the whole image.
"""

import argparse
import itertools
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor

import vit
from benchmarks.lib.harness import Call, arguments, document, publish, take_turns, write_manifest
from vit.data.photo import Photo, scale_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AREA = (0.08, 1.0)
SIZE, BATCH = (224, 224), 64
CIFAR_BATCH = 128

Variants = dict[str, Callable[[], int]]
"""Name -> one pass; it returns the number of images."""


def main() -> None:
    """Measures according to the arguments, prints and writes the results."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("folders", nargs="+", help="folders of photos, in folders of classes")
    parser.add_argument("--make-sizes", metavar="DIR", help="write test folders there and exit")
    parser.add_argument("--cifar", metavar="DIR", help="small images of one size, likewise")
    parser.add_argument("--images", type=int, default=160, help="maximum number from each folder")
    args = parser.parse_args()
    if args.quick:
        args.images, args.rounds = min(args.images, 8), 2
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)  # decode_image
    if args.make_sizes:
        make_sizes(Path(args.folders[0]), Path(args.make_sizes))
        return
    facts: dict[str, Any] = {
        "unit": "images per second of CPU time, one thread; ratios to torchvision within a round",
        "settings": {"image_size": SIZE, "batch_size": BATCH, "area": AREA, "rounds": args.rounds},
        "photos": {Path(folder).name: photo_results(folder, args) for folder in args.folders},
    }
    if args.cifar:
        facts["small_images_in_memory"] = cifar_results(args.cifar, args)
    publish(document("data", [], **facts), args, None)


def open_image(path: Path | str) -> Image.Image:
    """The whole image, decoded by Pillow, upright and RGB."""
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


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
    times = take_turns("passes", calls, rounds, shortest=0)
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


def consume(loader: Iterable[Any], data: vit.ImageData | None = None) -> int:
    """Iterates once over the batches, which `data` normalises. Returns the number of images."""
    count = 0
    for images, *_ in loader:
        count += len(images if data is None else data.preprocess.normalize(images))
    return count


def image_data(root: Path | str, pixels: int, batch: int, workers: int = 0, **more: Any) -> Any:
    """An ImageData of these images, all of which are for training, as `vit fit` builds it."""
    options = {
        "data.image_size": pixels,
        "data.batch_size": batch,
        "data.inputs.mean": MEAN,
        "data.inputs.std": STD,
        "data.splits.val_fraction": 0,
        "data.splits.test_fraction": 0,
        "data.loading.num_workers": workers,
        **more,
    }
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text("model: {name: vit_ti16}\n")
        return vit.from_recipe(recipe, data=root, **options)[1]


def training_pass(data: Any) -> int:
    """One epoch of training images; the next one has other crops."""
    count = consume(data.train_dataloader(), data)
    data.consumed_samples += count
    return count


def photo_results(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rates and pixel differences on one folder of photos."""
    crop = transforms.RandomResizedCrop(SIZE, scale=AREA)
    middle = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    classic = ImageFolder(folder, transforms.Compose(classic_steps(crop)))
    modern = ImageFolder(folder, modern_steps(), loader=read_tensor)
    standard = ImageFolder(folder, transforms.Compose(classic_steps(middle)))
    chosen = list(range(0, len(classic), max(1, len(classic) // args.images)))[: args.images]
    paths = [Path(classic.samples[index][0]) for index in chosen]
    height, width = (statistics.median(s) for s in zip(*(sides(p) for p in paths), strict=True))
    print(f"{folder}: {len(paths)} images, median {height:.0f} x {width:.0f} pixels", flush=True)
    with tempfile.TemporaryDirectory() as name:
        manifest = Path(name) / "images.csv"
        labels = itertools.cycle("ab")  # which no rate depends on
        write_manifest([(path, next(labels), "train") for path in paths], manifest)
        options = {"data.augment.crop_area": AREA, "data.inputs.crop_fraction": 0.875}
        data = image_data(manifest, SIZE[0], min(BATCH, len(paths)), **options)
        training = {
            "torchvision": lambda: consume(DataLoader(Subset(classic, chosen), BATCH)),
            "torchvision v2": lambda: consume(DataLoader(Subset(modern, chosen), BATCH)),
            "vit": lambda: training_pass(data),
        }
        evaluation = {
            "torchvision evaluation": lambda: consume(DataLoader(Subset(standard, chosen), BATCH)),
            "vit evaluation": lambda: consume(data.evaluation_loader("train"), data),
        }
        rates = measure(training, args.rounds), measure(evaluation, args.rounds)
        ours = torch.cat([images for images, *_ in data.evaluation_loader("train")])
        order = torch.cat([batch[2] for batch in data.evaluation_loader("train")]).tolist()
    return {
        "images": len(paths),
        "median_height": height,
        "median_width": width,
        "training": rates[0],
        "evaluation": rates[1],
        "evaluation_pixels": differences(
            (image, pil_to_tensor(middle(open_image(paths[index]))))
            for index, image in zip(order, ours, strict=True)
        ),
        "training_pixels": crop_differences(paths),
    }


def sides(path: Path) -> tuple[int, int]:
    """Height and width of a file's image."""
    with Image.open(path) as image:
        return image.height, image.width


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


def differences(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Peak signal-to-noise ratio in dB (100 where equal) and largest difference of uint8 images."""
    ratios, largest = [], 0
    for ours, theirs in pairs:
        error = ours.double() - theirs.double()
        ratios.append(10 * torch.log10(255**2 / error.square().mean().clamp(min=6.5e-6)).item())
        largest = max(largest, int(error.abs().max()))
    return {"images": len(ratios), "psnr": spread(ratios), "largest_difference": largest}


def crop_differences(paths: list[Path]) -> dict[str, Any]:
    """Training crops against Pillow's crop and resize of the whole image, by decoding scale."""
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    torch.manual_seed(0)
    for path in paths:
        image = open_image(path)
        box = transforms.RandomResizedCrop.get_params(image, list(AREA), [3 / 4, 4 / 3])
        top, left, height, width = box
        ours = Photo(str(path)).crop(box, SIZE, "bilinear")
        part = image.crop((left, top, left + width, top + height))
        theirs = pil_to_tensor(part.resize(SIZE, Image.Resampling.BILINEAR))
        scale = scale_of(height, width, SIZE)
        pairs.setdefault(f"decoded at 1/{scale}", []).append((ours, theirs))
    return {scale: differences(images) for scale, images in sorted(pairs.items())}


def cifar_results(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Small images: ImageFolder against batches cropped in memory, with pad crop and flip."""
    side, _ = sides(Path(ImageFolder(folder).samples[0][0]))
    padded = transforms.RandomCrop(side, padding=4)
    files = ImageFolder(folder, transforms.Compose(classic_steps(padded)))
    chosen = torch.randperm(len(files))[: 16 * args.images].tolist()
    options = {"data.augment.crop": "pad", "data.augment.crop_padding": 4}
    options |= {"data.inputs.crop_fraction": 1.0}
    batch = min(CIFAR_BATCH, len(files))
    data = image_data(folder, side, batch, **options, **{"model.architecture.patch_size": side})
    loader, evaluation = data.train_dataloader(), data.evaluation_loader("train")  # decoded here
    variants = {
        "torchvision": lambda: consume(DataLoader(Subset(files, chosen), CIFAR_BATCH)),
        "vit": lambda: consume(loader, data),
        "vit, no augmentation": lambda: consume(evaluation, data),
    }
    return {"images": len(files), "training": measure(variants, args.rounds)}


if __name__ == "__main__":
    main()
