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


def first_loss(model: Any, data: Any, trainer: Any) -> float:
    trainer.fit(model, data)
    return trainer.callback_metrics["train/loss"].item()


@pytest.mark.parametrize("batch", [44, 22, 4])
def test_the_loss_of_a_step_is_the_mean_over_its_images(
    batch: int, make_data, make_model, make_trainer
) -> None:
    model, data = make_model(), make_data(batch_size=batch)
    torch.nn.init.normal_(model.model.head.weight)  # else all images have the same loss
    data.setup("fit")
    images, labels, _ = map(torch.cat, zip(*data.evaluation_loader("train"), strict=True))
    with torch.inference_mode():
        expected = F.cross_entropy(model.model(data.preprocess.normalize(images)), labels).item()
    trainer = make_trainer(
        max_steps=1, accumulate_grad_batches=IMAGES // batch, limit_val_batches=0
    )
    assert first_loss(model, make_data(batch_size=batch), trainer) == pytest.approx(
        expected, rel=1e-6
    )


SMALL: dict[Any, dict[str, int]] = {
    MaskedAutoencoder: {"decoder_width": 24, "decoder_depth": 2, "decoder_heads": 2},
    Autoregressive: {"head_width": 16, "head_depth": 1},
}
"""Parts that are as large as published without these."""
OBJECTIVES: dict[str, Any] = {
    "mixing": {"mixing": Mixing(mixup=0.8, cutmix=1.0)},
    "class weights": {"loss": Loss(class_weights={"a": 5.0}), "classes": ["a", "b", "c"]},
    "several labels": {"multilabel": True},
    "a share of any class is a yes": {"loss": Loss(kind="bce"), "mixing": Mixing(mixup=0.8)},
    "masked patches": MaskedPatchPrediction,
    "autoencoder": MaskedAutoencoder,
    "autoregressive": Autoregressive,
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_of_an_objective_does_not_depend_on_the_batches(
    objective: str, make_data, make_model, make_trainer
) -> None:
    what, losses = OBJECTIVES[objective], []
    for batch in (44, 22, 4):
        if isinstance(what, dict):
            model = make_model(**what)
            torch.nn.init.normal_(model.model.head.weight)
        else:
            seed_everything(0, verbose=False)
            half = Preprocess(image_size=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
            alone = {"class_token": False, "pool": "gap"} if what is Autoregressive else {}
            fixed = {"architecture": {**SIZES, **alone}, "image_size": 8, "preprocess": half}
            model = what.of("vit_ti16", **fixed, **SMALL.get(what, {}))
        once = {"max_steps": 1, "accumulate_grad_batches": IMAGES // batch, "limit_val_batches": 0}
        losses.append(first_loss(model, make_data(batch_size=batch), make_trainer(**once)))
    assert losses == [pytest.approx(losses[0], rel=1e-6)] * 3
