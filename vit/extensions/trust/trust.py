"""trust.safetensors beside a model: what its answers are worth, measured on held-out images.

Shapes: n images of the measurement, b images, k classes.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from vit.confidence import TRUST, cut, set_scores
from vit.errors import POSITIVE, UserError, check_range, check_types
from vit.extensions.trust.unknown import SCORES, References, all_scores, outside
from vit.preprocessing import check_choice
from vit.weights.sealed import fingerprint, read_sealed, write_sealed
from vit.weights.weight_file import read_json


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

    unknown: str = "energy"
    """The one of `vit.extensions.trust.unknown.SCORES` that tells images of unknown classes;
    another than the energy where `vit trust` has chosen it."""
    usual: Tensor | None = None
    """float32 `s m`: of held-out images the energy, or after `vit trust` each of SCORES."""
    neighbours: Tensor | None = None
    """This and the next three, after `vit trust`: `vit.extensions.trust.unknown.References`."""
    directions: Tensor | None = None
    centre: Tensor | None = None
    means: Tensor | None = None

    def sets(self, logits: Tensor, coverage: float) -> Tensor:
        """True `b k` for the classes in each image's set, from its logits `b k`.

        The set holds the true class in a share of at least `coverage` of images like those of the
        measurement (arXiv:2009.14193, theorem 1).
        """
        assert self.scores is not None
        scores = set_scores((logits.cpu().double() / self.temperature).softmax(1))
        return scores <= cut(self.scores, coverage)

    @property
    def references(self) -> References | None:
        """References of the features; None before `vit trust`."""
        parts = [getattr(self, field.name) for field in fields(References)]
        return None if all(part is None for part in parts) else References(*parts)

    @property
    def score(self) -> str:
        """The score of unknown images, and a digest of its values for those that were measured."""
        assert self.usual is not None
        return f"{self.unknown} ({fingerprint({'usual': self.usual})[:16]})"

    def outside(
        self, logits: Tensor, features: Tensor | None, share: float, *, multilabel: bool
    ) -> Tensor:
        """True `b` for images less like the known classes than that share of the measured ones.

        From logits `b k` and, with `references`, features `b d`. UserError for features of another
        size than those of the measurement.
        """
        assert self.usual is not None
        features = None if features is None else features.cpu()
        scores = all_scores(logits.cpu(), features, self.references, multilabel=multilabel)
        return outside(scores, dict(zip(scores, self.usual, strict=True)), self.unknown, share)

    def _check(self) -> None:
        """An error for types and shapes that no measurement has."""
        tensors = ("scores", "usual", *(field.name for field in fields(References)))
        types: dict[str, Any] = dict.fromkeys(tensors, Tensor | None)
        types |= {"measured_on": str, "images": int, "temperature": float, "unknown": str}
        check_types(TRUST, vars(self), **types)
        check_range("temperature", self.temperature, POSITIVE)
        if self.scores is not None and self.scores.shape != (self.images,):
            raise ValueError("scores are one for each image")
        measured = SCORES if self.references is not None else SCORES[:1]
        check_choice("unknown", self.unknown, measured)
        if self.usual is not None and (self.usual.dim(), len(self.usual)) != (2, len(measured)):
            raise ValueError("usual has a row for each score")

    def write(self, folder: Path) -> None:
        """Writes the file beside the weights of a model directory."""
        tensors = {n: v.contiguous() for n, v in vars(self).items() if isinstance(v, Tensor)}
        rest = {name: value for name, value in vars(self).items() if name not in tensors}
        rest["weights"] = read_json(folder / "config.json")["sha256"]
        write_sealed(folder / TRUST, tensors, json.dumps(rest))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Measurement of a model directory; None without one, and if it is of other weights.

        UserError for a damaged file.
        """
        file = folder / TRUST
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
