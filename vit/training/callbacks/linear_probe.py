"""Linear probing before fine-tuning (LP-FT, Kumar et al., arXiv:2202.10054, section 3.3).

A head that starts at zero learns slowly and bends good features while it does. Fitted to the frozen
features first, it is a good classifier before the first step, and fine-tuning starts from there.
Shapes: n images, d features, k classes.
"""

import sys
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from vit.errors import UserError
from vit.logistic import minimise, total_loss
from vit.training.counted_data import CountedData, counting_data

STRENGTHS = (0.003, 0.01, 0.03, 0.1)
"""Weights of the squared norm that are tried; the range in which the best one lies for sets from
twenty to a hundred images a class (benchmarks/LOG.md)."""

FOLDS = 3
MAX_IMAGES = 10_000
"""Of the training set that are used at most."""


class LinearProbeFirst(Callback):
    """Fits a fresh head to the features of pretrained weights before the first step.

    The features of the training images come from the evaluation preprocessing. The head is their
    logistic regression with a squared norm, whose strength is chosen by cross-validation on these
    images: at most MAX_IMAGES of them, drawn by the run's seed. Nothing happens in a resumed run,
    with random weights, or where the weights came with a head for these classes.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        report: Any = getattr(pl_module, "load_report", None)
        if trainer.ckpt_path is not None or report is None or not report.reinitialised:
            return
        data = counting_data(trainer)
        if data is None:
            raise UserError("LinearProbeFirst needs the images of vit.ImageData")
        network: Any = pl_module.model
        features, labels = self._features(trainer, data, network)
        if trainer.is_global_zero:
            accuracies = []
            for layer, inputs in zip(network.head_layers, features, strict=True):
                weight, bias, accuracy = fit_head(inputs, labels, data.num_classes)
                _set(layer, weight, bias)
                accuracies.append(accuracy)
            kind = "labels right" if data.multilabel else "accuracy"
            print(
                f"head: fitted to the features of {len(labels):,} images before training; "
                f"{kind} on images left out of the fit {max(accuracies):.3f}",
                file=sys.stderr,
            )
        for layer in network.head_layers:
            for parameter in layer.parameters():
                parameter.data.copy_(trainer.strategy.broadcast(parameter.data))

    def _features(
        self, trainer: Trainer, data: CountedData, network: Any
    ) -> tuple[list[Tensor], Tensor]:
        """What each head receives, float64 `n d` on the CPU, and the labels, from all processes."""
        inputs: list[list[Tensor]] = [[] for _ in network.head_layers]
        hooks = [
            layer.register_forward_pre_hook(
                lambda _, given, kept=kept: kept.append(given[0].flatten(1).double().cpu())
            )
            for layer, kept in zip(network.head_layers, inputs, strict=True)
        ]
        was_training = network.training
        network.eval()
        labels = []
        try:
            with torch.inference_mode(), trainer.precision_plugin.forward_context():
                for images, label, _ in data.evaluation_loader("train", limit=MAX_IMAGES):
                    if not len(images):  # a process without a share, or only unreadable images
                        continue
                    images = data.preprocess.normalize(images.to(trainer.strategy.root_device))
                    network(images.to(next(network.parameters()).dtype))
                    labels.append(label)
        finally:
            for hook in hooks:
                hook.remove()
            network.train(was_training)
        gathered = _from_all_processes((inputs, labels))
        features = [
            [t for share in gathered for t in share[0][head]] for head in range(len(inputs))
        ]
        labels = [label for share in gathered for label in share[1]]
        return [torch.cat(tensors) for tensors in features], torch.cat(labels)


def _from_all_processes(value: Any) -> list[Any]:
    if not torch.distributed.is_initialized():
        return [value]
    shares: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, value)
    return shares


@torch.no_grad()
def _set(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    layer.get_parameter("weight").copy_(weight.view_as(layer.get_parameter("weight")))
    layer.get_parameter("bias").copy_(bias)


def fit_head(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor, float]:
    """Weight `k d`, bias `k`, and the accuracy on left-out images at the strength chosen.

    `features` are float64 `n d`, `labels` classes `n` or zeros and ones `n k`. The strength of
    STRENGTHS with the smallest cross-validated loss is taken; with several labels an image the
    accuracy is the share of labels that are right. With fewer than FOLDS images nothing can be
    left out; then the strongest is taken and the accuracy is NaN.
    """
    mean, std = features.mean(0), features.std(0, correction=0) + 1e-5
    z = (features - mean) / std
    strength, accuracy = STRENGTHS[-1], float("nan")
    if len(z) >= FOLDS:
        scores = [_cross_validate(z, labels, num_classes, strength) for strength in STRENGTHS]
        best = min(range(len(scores)), key=lambda i: scores[i][0])
        strength, accuracy = STRENGTHS[best], scores[best][1]
    weight, bias = logistic_regression(z, labels, num_classes, strength)
    weight = weight / std
    return weight, bias - weight @ mean, accuracy


def _cross_validate(
    z: Tensor, labels: Tensor, num_classes: int, strength: float
) -> tuple[float, float]:
    """Mean loss and accuracy over the images, each answered by a fit without its fold."""
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    loss, right = 0.0, 0.0
    for fold in range(FOLDS):
        out = torch.zeros(len(z), dtype=torch.bool)
        out[order[fold::FOLDS]] = True
        weight, bias = logistic_regression(z[~out], labels[~out], num_classes, strength)
        logits = z[out] @ weight.T + bias
        loss += float(total_loss(logits, labels[out]))
        if labels.dim() == 1:
            right += float((logits.argmax(1) == labels[out]).sum())
        else:
            right += float(((logits > 0) == (labels[out] > 0.5)).double().mean(1).sum())
    return loss / len(z), right / len(z)


def logistic_regression(
    features: Tensor, labels: Tensor, num_classes: int, strength: float
) -> tuple[Tensor, Tensor]:
    """Weight `k d` and bias `k` that minimise mean cross-entropy + strength * |weight|^2.

    Binary cross-entropy, summed over classes, for labels `n k`. Starts from zero.
    """
    weight = features.new_zeros(num_classes, features.shape[1])
    bias = features.new_zeros(num_classes)
    fit = minimise(
        features,
        labels,
        weight,
        bias,
        strength,
        max_iter=300,
        tolerance_grad=1e-7,
        tolerance_change=1e-13,
    )
    return fit.weight, fit.bias
