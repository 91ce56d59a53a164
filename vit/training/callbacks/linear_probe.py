"""A head fitted to the frozen features: before fine-tuning (LP-FT, Kumar et al., arXiv:2202.10054,
section 3.3), or as the whole of a run (`vit fit -c probe`)."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from vit.console import say
from vit.errors import UserError
from vit.logistic import STRENGTHS, FittedHead, can_fold, fit_head, set_head
from vit.training.counted_data import CountedData, counting_data, logits_of
from vit.training.losses import balanced_weights
from vit.training.parts import from_all_processes, gathered, part

MAX_IMAGES = 10_000
"""Training images at most for a head that is fine-tuned next."""
WIDE_STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-9, 1))
"""Weights of the squared norm for a head that stays, 3e-5 to 1: weak ones are best for hundreds of
images per class."""


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
        self.held_out: list[tuple[Tensor, Tensor]] = []
        """Logits and labels of the training images, by heads that were fitted without them; of the
        first process, if there are enough images."""
        self._groups: Tensor | None = None
        """Of the training images, int64 `n`, if they have groups."""

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        report = pl_module.load_report
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
        network = pl_module.model
        features, labels, places = self._features(trainer, network)
        groups = data.splits.train.group_numbers()
        self._groups = None if groups is None else torch.from_numpy(groups)[places]
        if not all(inputs.isfinite().all() for inputs in features):
            raise UserError(
                "features of train are not finite numbers: the weights are damaged, or "
                f"--trainer.precision {trainer.precision} is too low"
            )
        layers = [gathered(layer) for layer in network.head_layers]
        if trainer.is_global_zero:
            given = [*zip(layers, features, strict=True)]
            self.held_out = self._fit(data, pl_module, given, labels)
        for layer, fitted in zip(network.head_layers, layers, strict=True):
            for own, value in zip(layer.parameters(), fitted.parameters(), strict=True):
                own.data.copy_(part(trainer.strategy.broadcast(value.data), own))
        chosen_here = self.alone and data.multilabel and data.splits.val is None
        if chosen_here and can_fold(labels, self._groups):
            chosen = pl_module.val_metrics.choose(self.held_out, pl_module.plain_loss)
            pl_module.test_metrics.thresholds = chosen

    def _fit(
        self, data: CountedData, module: Any, given: list[tuple[nn.Module, Tensor]], labels: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Fits layers to their inputs; held-out logits and labels `n k`, with enough images."""
        strengths = WIDE_STRENGTHS if self.alone else STRENGTHS
        weights = module.class_weights
        if data.sampling.balanced:
            counts = labels.bincount(minlength=data.num_classes).clamp(min=1)
            weights = balanced_weights(counts.tolist())
        options, heads, known = (strengths, weights), [], module.load_report.known_rows
        for layer, inputs in given:
            head = fit_head(inputs, labels, data.num_classes, *options, groups=self._groups)
            if known:
                longer = extend_head(layer, known, inputs, labels, *options, self._groups)
                stays = longer.loss <= head.loss
                head = longer if stays else head
                what = "stay" if stays else "are fitted again, as that is better on images left out"
                say(f"head: the rows of {len(known):,} known classes {what}")
            set_head(layer, head.weight, head.bias)
            heads.append(head)
        kind = "labels right" if data.multilabel else "accuracy"
        logits = [head.held_out for head in heads if head.held_out is not None]
        said = f"head: fitted to the features of {len(labels):,} images"
        if logits and not known:  # which other fits may have seen
            share = max(head.accuracy(labels) for head in heads)
            said += f"; {kind} on images left out of the fit {share:.3f}"
        say(said)
        if not logits:
            return []
        return [(torch.stack(logits).mean(0).to(module.device), labels.to(module.device))]

    def _features(self, trainer: Trainer, network: Any) -> tuple[list[Tensor], Tensor, Tensor]:
        """The inputs of each head, float64 `n d` on the CPU, the labels, and the places of the
        images in train, of all processes."""
        inputs: list[list[Tensor]] = [[] for _ in network.head_layers]
        hooks = [
            layer.register_forward_pre_hook(
                lambda _, given, taken=taken: taken.append(given[0].flatten(1).double().cpu())
            )
            for layer, taken in zip(network.head_layers, inputs, strict=True)
        ]
        outputs = logits_of(trainer, network, "train", None if self.alone else MAX_IMAGES)
        for hook in hooks:
            hook.remove()
        rows = [(labels.cpu(), places) for _, labels, places in outputs]
        shares = from_all_processes((inputs, rows))
        features = [
            torch.cat([rows for share in shares for rows in share[0][head]])
            for head in range(len(inputs))
        ]
        rows = [row for share in shares for row in share[1]]
        labels, places = (torch.cat(parts) for parts in zip(*rows, strict=True))
        return features, labels, places


def extend_head(
    layer: nn.Module,
    known: list[int],
    inputs: Tensor,
    labels: Tensor,
    strengths: Sequence[float],
    class_weights: Tensor | None,
    groups: Tensor | None = None,
) -> FittedHead:
    """The layer's rows of the known classes, and rows of the others, fitted beside them."""
    state = {name: tensor.double().cpu() for name, tensor in layer.state_dict().items()}
    weight, bias = state["weight"].flatten(1), state["bias"]
    given = torch.full((len(labels), len(bias)), torch.nan, dtype=torch.float64)
    given[:, known] = (inputs @ weight.T + bias)[:, known]
    head = fit_head(inputs, labels, len(bias), strengths, class_weights, given, groups)
    head.weight[known], head.bias[known] = weight[known], bias[known]
    return head
