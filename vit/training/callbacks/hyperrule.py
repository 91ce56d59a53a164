"""BiT-HyperRule (arXiv:1912.11370, section 3.3; big_transfer, bit_hyperrule.py).

It derives all of fine-tuning from the size of the data set. Its three cases are three recipes, in
which every number can be read; the callback here says so when the data asks for another of them.
"""

from typing import Literal, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vit.console import note
from vit.training.counted_data import counting_data

Case = Literal["small", "medium", "large"]

MEDIUM, LARGE = 20_000, 500_000
"""Training images from which on a set is medium and large."""


def hyperrule(images: int) -> Case:
    """small: 500 steps without mixup. medium: 10,000 and large: 20,000 steps with mixup 0.1."""
    return get_args(Case)[(images >= MEDIUM) + (images >= LARGE)]


class BiTHyperRule(Callback):
    """Says so where BiT-HyperRule has another recipe for that many training images.

    Args:
        case: What the recipe is for: small (below 20,000 images), medium, or large (from 500,000).
    """

    def __init__(self, case: Case) -> None:
        self.case: Case = case

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = counting_data(trainer)
        if data is None:
            return
        images = data.expected_images("train")
        right = hyperrule(images)
        if right != self.case:
            note(
                f"BiT-HyperRule has the recipe transfer/bit_{right} for {images:,} training "
                f"images; this is transfer/bit_{self.case}"
            )
