"""A head fitted to the frozen features: before fine-tuning (LP-FT, Kumar et al., arXiv:2202.10054,
section 3.3), or as the whole of a run (`vit fit -c probe`)."""

from collections.abc import Callable
from functools import partial

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from vit.console import say
from vit.errors import UserError
from vit.logistic import STRENGTHS, FittedHead, fit_head, set_head
from vit.models.zoo import Model
from vit.tables import resolve, rows
from vit.training.counted_data import CountedData, counting_data, logits_of
from vit.training.image_classifier import ImageClassifier
from vit.training.losses import balanced_weights
from vit.training.parts import from_all_processes, gathered, part

MAX_IMAGES = 10_000
"""Training images at most for a head that is fine-tuned next."""
WIDE_STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-9, 1))
"""Weights of the squared norm for a head that stays, 3e-5 to 1: weak ones are best for hundreds of
images per class."""


KnownRows = Callable[..., FittedHead]
"""A row of the table `heads`. From a head that was fitted, its layer, the classes that the layer
knows, and the other arguments of `fit_head`: a head with the layer's rows of these, if better."""


class LinearProbe(Callback):
    """Fits the head to the features of pretrained weights before the first step.

    The head is the logistic regression of the training images' features, without augmentation,
    with a squared norm whose strength is chosen by cross-validation, and with the class weights of
    the loss, or balanced ones where classes are drawn equally often. Rows that the head has for
    some of the classes stay as they are, unless a head without them is better on left-out images.

    Args:
        alone: A head for just these classes is replaced too, all images are taken, and the run
            ends before its first step. Otherwise at most MAX_IMAGES are drawn by the run's seed,
            and nothing happens in a resumed run, with random weights, or with a head for these
            classes.
    """

    def __init__(self, alone: bool = False) -> None:
        self.alone = alone

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ImageClassifier)
        network, report = pl_module.model, pl_module.load_report
        if self.alone and report is None:
            raise UserError(
                "a probe of random features says little: give --model.pretrained WEIGHTS "
                "(`vit models` and docs/weights.md say which there are)"
            )
        if self.alone:
            trainer.should_stop = True
        elif trainer.ckpt_path is not None or report is None or not report.reinitialised:
            return
        data = counting_data(trainer)
        if data is None:
            raise UserError("LinearProbe needs the images of vit.ImageData")
        features, labels, places = self._features(trainer, network)
        if not all(inputs.isfinite().all() for inputs in features):
            raise UserError(
                "features of train are not finite numbers: the weights are damaged, or "
                f"--trainer.precision {trainer.precision} is too low"
            )
        groups = data.splits.train.group_numbers()
        groups = None if groups is None else torch.from_numpy(groups)[places]
        layers = [gathered(layer) for layer in network.head_layers]
        if trainer.is_global_zero:
            pairs = [*zip(layers, features, strict=True)]
            outputs = self.fit_layers(data, pl_module, pairs, labels, groups)
            # Weights that name one of the classes may have been trained on these very images, and
            # the one image of a class is no answer of a head that is fitted without it.
            unseen = report is not None and report.reinitialised and not report.known_rows
            if outputs is not None and self.alone and unseen and min(data.splits.class_counts) > 1:
                device = pl_module.device
                pl_module.held_out = [(outputs.to(device), labels.to(device))]
        for layer, fitted in zip(network.head_layers, layers, strict=True):
            for parameter, value in zip(layer.parameters(), fitted.parameters(), strict=True):
                parameter.data.copy_(part(trainer.strategy.broadcast(value.data), parameter))

    def fit_layers(
        self,
        data: CountedData,
        module: ImageClassifier,
        pairs: list[tuple[nn.Module, Tensor]],
        labels: Tensor,
        groups: Tensor | None,
    ) -> Tensor | None:
        """Fits layers to their inputs; logits `n k` of images left out, with enough of them."""
        weights = module.class_weights
        if data.sampling.balanced:
            weights = balanced_weights(labels.bincount(minlength=data.num_classes).tolist())
        options = WIDE_STRENGTHS if self.alone else STRENGTHS, weights
        known = report.known_rows if (report := module.load_report) else []
        heads: list[FittedHead] = []
        for layer, inputs in pairs:
            head = fit_head(inputs, labels, data.num_classes, *options, groups=groups)
            for row in rows("heads").values() if known else ():
                fit_beside: KnownRows = resolve(row)
                head = fit_beside(head, layer, known, inputs, labels, *options, groups)
            set_head(layer, head.weight, head.bias)
            heads.append(head)
        logits = [head.held_out for head in heads if head.held_out is not None]
        text = f"head: fitted to the features of {len(labels):,} images"
        if logits and report and report.reinitialised and not known:  # else perhaps seen before
            kind = "labels right" if data.multilabel else "accuracy"
            share = max(head.accuracy(labels) for head in heads)
            text += f"; {kind} on images left out of the fit {share:.3f}"
        say(text)
        return torch.stack(logits).mean(0) if logits else None

    def _features(self, trainer: Trainer, network: Model) -> tuple[list[Tensor], Tensor, Tensor]:
        """The inputs of each head, float64 `n d` on the CPU, the labels, and the places of the
        images in train, of all processes."""
        inputs: list[list[Tensor]] = [[] for _ in network.head_layers]
        hooks = [
            layer.register_forward_pre_hook(partial(_keep_input, batches))
            for layer, batches in zip(network.head_layers, inputs, strict=True)
        ]
        outputs = logits_of(trainer, network, "train", None if self.alone else MAX_IMAGES)
        for hook in hooks:
            hook.remove()
        rows = [(labels.cpu(), places) for _, labels, places in outputs]
        shares = from_all_processes((inputs, rows))
        features = [
            torch.cat([batch for heads, _ in shares for batch in heads[head]])
            for head in range(len(inputs))
        ]
        rows = [row for _, rows in shares for row in rows]
        labels, places = (torch.cat(parts) for parts in zip(*rows, strict=True))
        return features, labels, places


def _keep_input(batches: list[Tensor], layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    batches.append(inputs[0].flatten(1).double().cpu())
