"""Linear probing before fine-tuning (LP-FT, Kumar et al., arXiv:2202.10054, section 3.3).

A head that starts at zero learns slowly and bends good features while it does. Fitted to the frozen
features first, it is a good classifier before the first step, and fine-tuning starts from there.
Shapes: n images, d features, k classes.
"""

from typing import Any

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.console import say
from vit.errors import UserError
from vit.logistic import fit_head, set_head
from vit.training.counted_data import CountedData, counting_data

MAX_IMAGES = 10_000
"""At most this many images of the training set are used."""


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
                set_head(layer, weight, bias)
                accuracies.append(accuracy)
            kind = "labels right" if data.multilabel else "accuracy"
            say(
                f"head: fitted to the features of {len(labels):,} images before training; "
                f"{kind} on images left out of the fit {max(accuracies):.3f}"
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
