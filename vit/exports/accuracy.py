"""The accuracy of two computations of one model on the same labelled images."""

from dataclasses import dataclass

from vit.console import Meter
from vit.data.sources import ImageSet
from vit.exports.proof import BATCH, cut
from vit.exports.write import Run
from vit.preprocessing import Preprocess

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class Paired:
    """The answers of two models to the same images."""

    count: int
    before: int
    """Images that the first model names rightly."""
    lost: int
    """Of these, those that the second names wrongly."""
    gained: int
    """Named wrongly by the first and rightly by the second."""

    @property
    def after(self) -> int:
        """Images that the second model names rightly."""
        return self.before - self.lost + self.gained

    @property
    def drop(self) -> float:
        """Points of accuracy that the second model loses."""
        return 100 * (self.lost - self.gained) / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the drop: adjusted Wald of paired proportions (Bonett and Price, 2012), which
        does not collapse where all answers are equal."""
        lost, gained, count = self.lost + 1, self.gained + 1, self.count + 2
        difference = (lost - gained) / count
        spread = Z_95 * ((lost + gained - (lost - gained) ** 2 / count) ** 0.5 / count)
        return 100 * (difference - spread), 100 * (difference + spread)

    def sees(self, points: float) -> bool:
        """The images are enough to tell a drop of so many points from none."""
        low, high = self.interval
        return (high - low) / 2 <= points


def compared(first: Run, second: Run, images: ImageSet, preprocess: Preprocess) -> Paired:
    """The first classes of two models on labelled images."""
    before = lost = gained = 0
    with Meter("accuracy", len(images), "img") as meter:
        for start in range(0, len(images), BATCH):
            labels = images.labels[start : start + BATCH]
            batch = range(start, start + len(labels))
            pixels = cut((images.items[i] for i in batch), preprocess)
            was, now = (run(pixels)["logits"].argmax(1) == labels for run in (first, second))
            before += int(was.sum())
            lost += int((was & ~now).sum())
            gained += int((~was & now).sum())
            meter.advance(len(labels))
    return Paired(len(images), before, lost, gained)
