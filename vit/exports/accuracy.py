"""The accuracy of two computations of one model on the same labelled images."""

from vit.console import Meter
from vit.data.sources import ImageSet
from vit.exports.proof import BATCH, Run, cut
from vit.intervals import Paired
from vit.preprocessing import Preprocess


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
