"""A logistic regression on frozen features as a run: `vit fit -c probe`."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vit.cache import cache_directory
from vit.console import say
from vit.errors import UserError
from vit.evaluation.features import Extractor
from vit.logistic import fit_head, set_head

STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-9, 1))
"""Weights of the squared norm, 3e-5 to 1: the range of LinearProbeFirst, and weaker ones, which are
best for hundreds of images per class."""


class LinearProbe(Callback):
    """Fits the head to the features of pretrained weights, and ends the run before its first step.

    The features of the training images come from the evaluation preprocessing and are kept in the
    cache, as those of `vit probe`. The strength of the squared norm is chosen by cross-validation
    on these images. A head that came with the weights is replaced.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = getattr(trainer, "datamodule", None)
        network: Any = pl_module.model
        if getattr(pl_module, "load_report", None) is None:
            raise UserError(
                "a probe of random features says little: give --model.pretrained WEIGHTS "
                "(`vit models` and docs/weights.md say which there are)"
            )
        if trainer.world_size > 1:
            raise UserError(
                f"a probe is fitted in one process, not in {trainer.world_size}: add "
                "--trainer.devices 1"
            )
        if len(network.head_layers) != 1:
            raise UserError("a probe has one head, and a distilled model has two: fine-tune it")
        parameter = next(network.parameters())
        before, device, training = parameter.dtype, trainer.strategy.root_device, network.training
        extractor = Extractor(
            network, "pre_logits", device=str(device), cache=cache_directory() / "features"
        )
        features = extractor(data, "train")
        values = torch.from_numpy(features.values).double()
        labels = torch.from_numpy(features.labels)
        weight, bias, accuracy = fit_head(values, labels, data.num_classes, STRENGTHS)
        [head] = network.head_layers
        set_head(head, weight, bias)
        network.to(device, before).train(training)
        kind = "labels right" if data.multilabel else "accuracy"
        source = "from the cache" if features.cached else f"computed in {features.seconds:.1f} s"
        say(
            f"head: fitted to the features of {len(labels):,} images ({source}); "
            f"{kind} on images left out of the fit {accuracy:.3f}"
        )
        trainer.should_stop = True
