"""train/loss: the mean over the images of a step, in whatever batches they come."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import seed_everything

from vit.extensions.pretraining.autoregressive import Autoregressive
from vit.extensions.pretraining.masked_autoencoder import MaskedAutoencoder
from vit.extensions.pretraining.masked_patches import MaskedPatchPrediction
from vit.preprocessing import Preprocess
from vit.training.losses import Loss
from vit.training.mixing import Mixing

IMAGES = 44
"""Of train."""
SIZES = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


SMALL: dict[Any, dict[str, int]] = {
    MaskedAutoencoder: {"decoder_width": 24, "decoder_depth": 2, "decoder_heads": 2},
    Autoregressive: {"head_width": 16, "head_depth": 1},
}
"""Parts that are as large as published without these."""
OBJECTIVES: dict[str, Any] = {
    "cross-entropy": {},
    "mixing": {"mixing": Mixing(mixup=0.8, cutmix=1.0)},
    "class weights": {"loss": Loss(class_weights={"a": 5.0}), "classes": ["a", "b", "c"]},
    "several labels": {"multilabel": True},
    "a share of any class is a yes": {"loss": Loss(kind="bce"), "mixing": Mixing(mixup=0.8)},
    "masked patches": MaskedPatchPrediction,
    "autoencoder": MaskedAutoencoder,
    "autoregressive": Autoregressive,
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_of_a_step_is_the_mean_over_its_images(
    objective: str, make_data, make_model, make_trainer
) -> None:
    options, losses = OBJECTIVES[objective], []
    for batch in (44, 22, 4):
        data = make_data(batch_size=batch)
        if isinstance(options, dict):
            model = make_model(**options)
            torch.nn.init.normal_(model.model.head.weight)  # else all images have the same loss
        else:
            seed_everything(0, verbose=False)
            half = Preprocess(image_size=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
            alone = {"class_token": False, "pool": "gap"} if options is Autoregressive else {}
            fixed = {"architecture": {**SIZES, **alone}, "image_size": 8, "preprocess": half}
            model = options.of("vit_ti16", **fixed, **SMALL.get(options, {}))
        if options == {}:
            data.setup("fit")
            images, labels, _ = map(torch.cat, zip(*data.evaluation_loader("train"), strict=True))
            with torch.inference_mode():
                logits = model.model(data.preprocess.normalize(images))
            losses.append(F.cross_entropy(logits, labels).item())
        once = {"max_steps": 1, "accumulate_grad_batches": IMAGES // batch, "limit_val_batches": 0}
        trainer = make_trainer(**once)
        trainer.fit(model, make_data(batch_size=batch))
        losses.append(trainer.callback_metrics["train/loss"].item())
    assert losses == [pytest.approx(losses[0], rel=1e-6)] * len(losses)
