"""trust.safetensors beside a model: what its answers are worth, measured on held-out images.

Shapes: n images of the measurement, b images, k classes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from vit.checkpoints.files import read_json
from vit.checkpoints.writing import read_sealed, write_sealed
from vit.confidence import cut, set_scores
from vit.errors import POSITIVE, UserError, check_range, check_types

FILE = "trust.safetensors"


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Measured on images that the weights were not trained on.

    Tensors, on the CPU, are stored as such, other fields as JSON. Defaults: it was not measured.
    """

    measured_on: str = ""
    """For people: which images."""
    images: int = 0
    """How many."""
    temperature: float = 1.0
    """With which `scores` were computed; 1 if none could be fitted."""
    scores: Tensor | None = None
    """float64 `n`, ascending: `vit.confidence.set_scores` of the true classes; None with
    several labels per image."""

    usual: Tensor | None = None
    """float32 `n`, ascending: `vit.inference.unknown.energy` of the images."""

    def cuts(self, coverages: Iterable[float]) -> dict[float, float]:
        """The cut of `vit.confidence.set_scores` for each coverage that there are images for."""
        if self.scores is None:
            return {}
        return {c: cut(self.scores, c) for c in coverages if self.images + 1 >= 1 / (1 - c) - 1e-9}

    def sets(self, logits: Tensor, coverage: float) -> Tensor:
        """True `b k` for the classes in each image's set, from its logits `b k`.

        The set holds the true class in a share of at least `coverage` of images like those of the
        measurement (arXiv:2009.14193, theorem 1).
        """
        assert self.scores is not None
        scores = set_scores((logits.cpu().double() / self.temperature).softmax(1))
        return scores <= cut(self.scores, coverage)

    def _check(self) -> None:
        """An error for types and shapes that no measurement has."""
        types = {"scores": Tensor | None, "usual": Tensor | None}
        check_types(FILE, vars(self), measured_on=str, images=int, temperature=float, **types)
        check_range("temperature", self.temperature, POSITIVE)
        for name in types:
            values = getattr(self, name)
            if values is not None and values.shape != (self.images,):
                raise ValueError(f"{name} are one for each image")

    def write(self, folder: Path) -> None:
        """Writes the file beside the weights of a model directory."""
        tensors = {n: v.contiguous() for n, v in vars(self).items() if isinstance(v, Tensor)}
        rest = {name: value for name, value in vars(self).items() if name not in tensors}
        rest["weights"] = read_json(folder / "config.json")["sha256"]
        write_sealed(folder / FILE, tensors, json.dumps(rest))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """That of a model directory; None without one, and if it is of other weights.

        UserError for a damaged file.
        """
        file = folder / FILE
        if not file.is_file():
            return None
        try:
            tensors, text = read_sealed(file)
            values: dict[str, Any] = {**json.loads(text), **tensors}
            weights = values.pop("weights")
            trust = cls(**values)
            trust._check()
        except (LookupError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise UserError(f"{file} is damaged; delete it, or copy it again") from error
        return trust if weights == read_json(folder / "config.json").get("sha256") else None
