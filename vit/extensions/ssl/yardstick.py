"""A labelled folder beside a run without labels.

Shapes: b batch, n images, c channels, h w pixels, d width, k prototypes.
"""

from collections.abc import Callable, Iterable

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from vit.data.module import ImageData
from vit.data.settings import Splitting
from vit.data.sources import SplitName
from vit.errors import UserError
from vit.extensions.evaluation.knn import leave_one_out
from vit.training.parts import from_all_processes

Answers = Callable[[Tensor], tuple[Tensor, ...]]
"""Images of a loader `b c h w` -> features `b d`, first of all."""


class Yardstick:
    """A labelled folder or list, cut once in two halves: one stops a run and chooses its weights,
    the other measures the result.

    They are cut class by class. Of a folder or list with a val or test of its own that measures.

    Args:
        root: The images, with one label each.
        level: P-value of a loss; one of all images must be below it.
        like: The images without labels, which say how to read these.
        trainer: Of the run, whose processes share the work.
    """

    def __init__(self, root: str, level: float, like: ImageData, trainer: Trainer) -> None:
        cut = Splitting(val_fraction=0, test_fraction=0.5, seed=like.seed)
        size, batch = like.image_size, like.batch_size
        self.data = ImageData(
            root=root, image_size=size, batch_size=batch, splits=cut, loading=like.loading
        )
        self.data.preprocess, self.data.trainer = like.preprocess, trainer
        splits = self.data.splits
        if splits.multilabel:
            raise UserError(f"model.yardstick: {root} has several labels per image; give one each")
        self.halves: tuple[SplitName, SplitName] = ("train", "test" if splits.test else "val")
        smallest = min(len(splits.get(half) or ()) for half in self.halves)
        if 0.5**smallest > level:
            text = "and a loss of all of them could be chance; add labelled images"
            raise UserError(f"model.yardstick: half of {root} is {smallest} images, {text}")

    def hits(self, answers: Answers) -> list[Tensor]:
        """Answers of each half: true `n` for images, in order, that its others name rightly."""
        halves = []
        for half in self.halves:
            batches = self.data.evaluation_loader(half)
            parts = joined((answers(images)[0], *rest) for images, *rest in batches)
            features, labels, _ = (tensor[parts[2].argsort()] for tensor in parts)
            names = leave_one_out(features.numpy(), labels, self.data.num_classes)
            halves.append(names == labels)
        return halves


def joined(parts: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """Tensors of the batches of all processes, one after the other, on the CPU."""
    mine = [tuple(tensor.cpu() for tensor in part) for part in parts]
    rows = [part for share in from_all_processes(mine) for part in share]
    return [torch.cat(tensors) for tensors in zip(*rows, strict=True)]
