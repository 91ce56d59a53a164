"""A head that starts from the names of the classes and learns from their photos.

Shapes: n photos, d features, k classes.
"""

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import override

from vit.console import say
from vit.errors import UserError
from vit.extensions.adaptation.ridge import ridge_towards
from vit.extensions.text.zero_shot import load_named
from vit.logistic import set_head
from vit.models.config import ViTConfig
from vit.training.callbacks.linear_probe import LinearProbe
from vit.training.counted_data import CountedData
from vit.training.image_classifier import ImageClassifier

FEWEST = 3
"""Photos of every class from which on the strength is chosen by leave-one-out."""
USUAL = 3.0
"""The strength for fewer (docs/names.md, "Names and photos")."""


class NamedHead(LinearProbe):
    """The texts of the names of the classes as a head, which a ridge regression on the training
    images moves. It is the whole of a run: `vit fit -c names`.

    Args:
        templates: Sentences with {} for the name, one or several, or imagenet; as of vit.load.
    """

    def __init__(self, templates: str | Sequence[str] | None = None) -> None:
        super().__init__(alone=True)
        self.templates = templates

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Gives the network the head of the names, unless it has a head for these classes."""
        assert isinstance(pl_module, ImageClassifier)
        report, config = pl_module.load_report, pl_module.model.config
        if stage != "fit" or report is None:
            return
        if pl_module.multilabel:
            raise UserError("names are for one label per image: take -c probe for several")
        if isinstance(config, ViTConfig) and config.cosine is not None and not report.reinitialised:
            return
        names = {"names": pl_module.classes, "templates": self.templates}
        model, named = load_named(report.source, **names, image_size=config.size)
        say("\n".join(["the texts of the names are the head instead:", *named.lines()]))
        pl_module.model = model.train(pl_module.model.training)

    @override
    def fit_layers(
        self,
        data: CountedData,
        module: ImageClassifier,
        pairs: list[tuple[nn.Module, Tensor]],
        labels: Tensor,
        groups: Tensor | None,
    ) -> Tensor | None:
        if data.sampling.balanced or module.class_weights is not None:
            raise UserError("a head of names weighs all images alike: take -c probe for weights")
        [(layer, inputs)] = pairs
        rows = layer.get_parameter("weight").detach().double().cpu()
        fewest = int(labels.bincount(minlength=len(rows)).min())
        chosen = fewest >= FEWEST and groups is None  # an image of a group tells of the others
        head = ridge_towards(inputs, labels, rows, None if chosen else USUAL)
        set_head(layer, head.weight, head.bias)
        accuracy = float((head.held_out.argmax(1) == labels).double().mean())
        left_out = f"; accuracy on images left out of the fit {accuracy:.3f}"
        left_out = left_out if groups is None else ""  # whose images tell of one another
        by = (
            "by leave-one-out"
            if chosen
            else f"for fewer than {FEWEST} images of a class, or groups"
        )
        say(
            f"head: names, and {len(labels):,} images with strength {head.strength:.3g} ({by})"
            f"{left_out}"
        )
        return head.held_out.float() if groups is None else None
