"""Fifteen kinds of corruption in five strengths (arXiv:1903.12261), drawn here.

The numbers are those of the authors' scripts for ImageNet-C (224 pixels) and CIFAR-10-C (32). They
used ImageMagick, OpenCV and photographs of frost, and saved ImageNet-C as JPEG of quality 85; here
are NumPy, SciPy, Pillow and drawn frost: such pictures are "generated", and only the official files
compare with papers. Shapes: h w pixels, v versions, m images, k k taps.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage, signal

from vit.data.decode import open_image
from vit.data.items import Opened
from vit.data.sources import ImageSet
from vit.preprocessing import Preprocess, Size

STRENGTHS = (1, 2, 3, 4, 5)
Draws = np.random.Generator

_LUMA = (0.299, 0.587, 0.114)
_ICE = (0.86, 0.93, 1.0)


def table_for(size: Size) -> int:
    """The table, 32 or 224, whose pixels are nearest to the shorter side."""
    return 32 if min(size) <= (32 + 224) / 2 else 224


def corrupt(image: np.ndarray, kind: str, strength: int, *, key: str, seed: int = 0) -> np.ndarray:
    """uint8 `h w 3` -> the same shape: a function of (seed, key, kind, strength) and the image.

    `kind`: of KINDS. `strength`: from 1 to 5. `key`: the name of the image.
    """
    drawn = f"{seed}\0{key}\0{kind}\0{strength}".encode("utf-8", "surrogateescape")
    draws = np.random.default_rng(int.from_bytes(blake2b(drawn, digest_size=16).digest(), "little"))
    change, at_224, at_32 = KINDS[kind]
    numbers = at_32 if table_for(image.shape[:2]) == 32 else at_224
    changed = change(image / 255, numbers[strength - 1], draws)
    # Rounded down, as the authors' are, but not by a rounding error.
    return (changed.clip(0, 1) * 255 + 1e-6).astype(np.uint8)


@dataclass
class Generated(Opened):
    """Images as a model sees them, corrupted."""

    images: ImageSet
    preprocess: Preprocess
    kind: str
    strength: int
    seed: int

    def __post_init__(self) -> None:
        self.places = np.arange(len(self.images))

    def __getitem__(self, index: int) -> np.ndarray:
        """uint8 `h w 3`. Raises ImageError."""
        clean = self.preprocess(open_image(self.images.items[index])).permute(1, 2, 0).numpy()
        key = self.images.names.name(index)
        return corrupt(clean, self.kind, self.strength, key=key, seed=self.seed)


def disk(radius: float, sigma: float) -> np.ndarray:
    """`k k`: a disk whose edge is smoothed by 3 taps of a Gaussian, 5 above radius 8.

    As the authors' is: mirrored at the border of an array of 8, or above it the radius, to each
    side, and then not divided by its sum, 1.01 for radii of 8 and 10, which touch that border.
    """
    reach, border = (1, 8) if radius <= 8 else (2, int(radius))
    side = np.arange(-border, border + 1)
    inside = side**2 + side[:, None] ** 2 <= radius**2
    taps = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    smoothing = np.outer(taps, taps) / taps.sum() ** 2
    return ndimage.convolve(inside / inside.sum(), smoothing, mode="mirror")


def plasma(side: int, decay: float, draws: Draws) -> np.ndarray:
    """Heights in [0, 1] by the diamond-square algorithm on a torus: `s s`, s a power of 2 >= side.

    The noise of each level is that of the level above over decay squared.
    """
    step = 1 << (side - 1).bit_length()
    heights, spread = np.zeros((step, step)), 1.0
    while step > 1:
        half, corners = step // 2, heights[::step, ::step]
        right, below = np.roll(corners, -1, 1), np.roll(corners, -1, 0)
        noise = draws.uniform(-spread, spread, (3, *corners.shape))
        middles = (corners + right + below + np.roll(right, -1, 0)) / 4 + noise[0]
        heights[half::step, half::step] = middles
        heights[::step, half::step] = (corners + right + middles + np.roll(middles, 1, 0)) / 4
        heights[half::step, ::step] = (corners + below + middles + np.roll(middles, 1, 1)) / 4
        heights[::step, half::step] += noise[1]
        heights[half::step, ::step] += noise[2]
        step, spread = half, spread / decay**2
    return (heights - heights.min()) / np.ptp(heights)


def zoomed(x: np.ndarray, factor: float) -> np.ndarray:
    """The middle of `h w c`, enlarged bilinearly with aligned corners, cut to `h w c`."""
    shape = x.shape[:2]
    inner = [int(np.ceil(side / factor)) for side in shape]
    outer = [round(side * factor) for side in inner]
    part = torch.from_numpy(_middle(x, inner)).permute(2, 0, 1)[None]
    large = F.interpolate(part, outer, mode="bilinear", align_corners=True)
    return _middle(large[0].permute(1, 2, 0).numpy(), shape)


def _middle(x: np.ndarray, size: Sequence[int]) -> np.ndarray:
    top, left = (x.shape[0] - size[0]) // 2, (x.shape[1] - size[1]) // 2
    return x[top : top + size[0], left : left + size[1]]


def _impulse_noise(x: np.ndarray, share: float, draws: Draws) -> np.ndarray:
    replaced, salt = draws.random((2, *x.shape))
    return np.where(replaced <= share, salt <= 0.5, x)


def _defocus_blur(x: np.ndarray, numbers: tuple[float, float], _: Draws) -> np.ndarray:
    kernel = disk(*numbers)
    reach = len(kernel) // 2
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1))


def _moved(x: np.ndarray, numbers: Sequence[float], degrees: float) -> np.ndarray:
    """ImageMagick's motion blur: half a Gaussian along a line, of pixels `k` rounded steps off."""
    (height, width, _), (radius, sigma) = x.shape, numbers
    steps = np.arange(int(2 * radius) + 1)
    weights = np.exp(-((steps / sigma) ** 2) / 2)
    direction = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    offsets = np.ceil(steps[:, None] * direction - 0.5).astype(int)
    reach = int(abs(offsets).max())
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    blurred = np.zeros_like(x)
    for weight, (down, right) in zip(weights / weights.sum(), offsets + reach, strict=True):
        blurred += weight * padded[down : down + height, right : right + width]
    return blurred


def _glass_blur(x: np.ndarray, numbers: tuple[float, int, int], draws: Draws) -> np.ndarray:
    (sigma, most, rounds), (height, width, _) = numbers, x.shape
    places = np.arange(height * width).reshape(height, width)
    inner = places[most + 1 : height - most + 1, most + 1 : width - most + 1]
    x = _smooth(x, sigma)
    for _ in range(rounds):
        # From the last to the first, each pixel becomes a neighbour at most so many rows and
        # columns off. (The authors' swap of two views of an array is this copy.)
        down, right = draws.integers(-most, most, (2, *inner.shape))
        near, taken = inner + down * width + right, places.ravel().tolist()
        for place, other in zip(inner.flat[::-1].tolist(), near.flat[::-1].tolist(), strict=True):
            taken[place] = taken[other]
        x = x.reshape(-1, 3)[taken].reshape(x.shape)
    return _smooth(x, sigma)


def _smooth(x: np.ndarray, sigma: float) -> np.ndarray:
    return ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")


def _zoom_blur(x: np.ndarray, numbers: tuple[float, float], _: Draws) -> np.ndarray:
    factors = np.arange(1, *numbers)
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def _snow(x: np.ndarray, numbers: Sequence[float], draws: Draws) -> np.ndarray:
    mean, std, zoom, least, *blur, share = numbers
    flakes = zoomed(draws.normal(mean, std, (*x.shape[:2], 1)), zoom)
    flakes = np.where(flakes < least, 0, flakes).clip(0, 1)
    flakes = _moved(flakes, blur, draws.uniform(-135, -45))
    whitened = np.maximum(x, 1.5 * (x @ _LUMA)[..., None] + 0.5)
    return share * x + (1 - share) * whitened + flakes + np.rot90(flakes, 2)


def _frost(x: np.ndarray, numbers: tuple[float, float, int], draws: Draws) -> np.ndarray:
    share, weight, shrink = numbers
    height, width, _ = x.shape
    ridges = np.zeros((height * shrink, width * shrink))
    for decay in (1.2, 1.3, 1.4):
        heights = plasma(max(ridges.shape), decay, draws)[: len(ridges), : ridges.shape[1]]
        ridges = np.maximum(ridges, 1 - abs(2 * heights - 1))
    ridges = (ridges**6).reshape(height, shrink, width, shrink).mean((1, 3))
    return share * x + weight * ridges[..., None] * _ICE


def _fog(x: np.ndarray, numbers: tuple[float, float], draws: Draws) -> np.ndarray:
    thickness, decay = numbers
    heights = plasma(max(x.shape), decay, draws)[: x.shape[0], : x.shape[1], None]
    return (x + thickness * heights) * x.max() / (x.max() + thickness)


def _brightness(x: np.ndarray, addition: float, _: Draws) -> np.ndarray:
    # The value of HSV is the largest channel; hue and saturation are kept by one factor for all.
    value = x.max(-1, keepdims=True)
    brighter = (value + addition).clip(0, 1)
    return np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter)


def _elastic(x: np.ndarray, numbers: tuple[float, float, float], draws: Draws) -> np.ndarray:
    """Numbers are shares of the side: the largest shift, its smoothness, and that of the corners of
    a triangle, which moves the whole image."""
    height, width, _ = x.shape
    side = min(height, width)
    shift, sigma, corner = (side * number for number in numbers)
    near = side // 3
    corners = np.array([[near, near], [near, -near], [-near, -near]])
    triangle = corners + np.array([height // 2, width // 2])
    moved = triangle + draws.uniform(-corner, corner, triangle.shape)
    back = np.linalg.solve(np.c_[moved, np.ones(3)], triangle)  # 3 2
    grid = np.indices((height, width), dtype=float)
    source = np.tensordot(back[:2].T, grid, 1) + back[2][:, None, None]
    x = _sampled(x, source, "mirror")
    noise = draws.uniform(-1, 1, grid.shape)
    fields = [ndimage.gaussian_filter(n, sigma, mode="reflect", truncate=3) for n in noise]
    return _sampled(x, grid + shift * np.stack(fields), "reflect")


def _sampled(x: np.ndarray, at: np.ndarray, mode: str) -> np.ndarray:
    planes = [ndimage.map_coordinates(x[..., c], at, order=1, mode=mode) for c in range(3)]
    return np.stack(planes, -1)


def _pixelate(x: np.ndarray, share: float, _: Draws) -> np.ndarray:
    image, box = _picture(x), Image.Resampling.BOX
    small = image.resize((int(image.width * share), int(image.height * share)), box)
    return np.asarray(small.resize(image.size, box)) / 255


def _jpeg_compression(x: np.ndarray, quality: int, _: Draws) -> np.ndarray:
    file = io.BytesIO()
    _picture(x).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


def _picture(x: np.ndarray) -> Image.Image:
    return Image.fromarray((x * 255).round().astype(np.uint8))


class Kind(NamedTuple):
    """Kind of corruption: the change of `h w 3` in [0, 1], and its numbers by strength."""

    change: Callable[[np.ndarray, Any, Draws], np.ndarray]
    at_224: Sequence[Any]
    at_32: Sequence[Any]


# fmt: off
_ELASTIC_244 = (
    (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))

KINDS = {
    "gaussian_noise": Kind(
        lambda x, sigma, draws: x + draws.normal(0, sigma, x.shape),
        (0.08, 0.12, 0.18, 0.26, 0.38), (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Kind(
        lambda x, photons, draws: draws.poisson(x * photons) / photons,
        (60, 25, 12, 5, 3), (500, 250, 100, 75, 50)),
    "impulse_noise": Kind(
        _impulse_noise, (0.03, 0.06, 0.09, 0.17, 0.27), (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": Kind(  # radius, smoothing
        _defocus_blur,
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": Kind(  # smoothing, distance, rounds
        _glass_blur,
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion_blur": Kind(  # radius, sigma
        lambda x, numbers, draws: _moved(x, numbers, draws.uniform(-45, 45)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": Kind(  # end and step of the factors
        _zoom_blur,
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))),
    "snow": Kind(  # mean and deviation of the flakes, zoom, threshold, radius, sigma, image kept
        _snow,
        ((0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
         (0.55, 0.3, 4, 0.9, 12, 8, 0.7), (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
         (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55)),
        ((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
         (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9), (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
         (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8))),
    "frost": Kind(  # image, frost, and how many times smaller than for 224 pixels
        _frost,
        ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
        ((1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5))),
    "fog": Kind(  # thickness, decay
        _fog,
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Kind(_brightness, (0.1, 0.2, 0.3, 0.4, 0.5), (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Kind(
        lambda x, factor, draws: (x - x.mean((0, 1))) * factor + x.mean((0, 1)),
        (0.4, 0.3, 0.2, 0.1, 0.05), (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": Kind(  # the authors' are for 244 pixels where the image has 224
        _elastic,
        [tuple(244 / 224 * number for number in numbers) for numbers in _ELASTIC_244],
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05),
         (0.1, 0.03, 0.03))),
    "pixelate": Kind(_pixelate, (0.6, 0.5, 0.4, 0.3, 0.25), (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Kind(_jpeg_compression, (25, 18, 15, 10, 7), (80, 65, 58, 50, 40)),
}
# fmt: on
"""In the paper's order; the names are those of the official folders and files."""
