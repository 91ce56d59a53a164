"""What test_ddp.py starts as two processes and calls as one: trains, scores, writes what came out.

Arguments: folder of photos, number of processes, file to write.
"""

import sys
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer, seed_everything

from vit.data.module import ImageData, InputFormat
from vit.data.options import Loading
from vit.data.transforms import TrainTransform
from vit.training.callbacks import EMA
from vit.training.classifier import ImageClassifier
from vit.training.facts import DataFacts, Labels
from vit.training.losses import Loss
from vit.training.mixing import Mixing

SIZES = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


class ManyLabels(LightningDataModule):
    """One image with several labels: the second process gets an empty batch."""

    def test_dataloader(self) -> torch.utils.data.DataLoader:
        assert self.trainer is not None
        n = 1 if self.trainer.global_rank == 0 else 0
        batch = torch.ones(n, 3, 8, 8), torch.tensor([[1.0, 0.0, 1.0]])[:n]
        return torch.utils.data.DataLoader([batch], batch_size=None)


def make_model(*, many: bool = False) -> ImageClassifier:
    seed_everything(0, verbose=False)
    model = ImageClassifier(
        "vit_ti16",
        architecture={**SIZES, "drop_path": 0.3},
        # Only images with one label are trained on here.
        mixing=None if many else Mixing(mixup=0.8, cutmix=1.0),
        facts=DataFacts(num_classes=3, image_size=8, labels=Labels(multilabel=many)),
        loss=Loss(kind="sigmoid" if many else "softmax"),
        # SGD: Adam would blow rounding errors up to the size of a step where a gradient is zero.
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    )
    torch.nn.init.normal_(model.model.get_submodule("head").get_parameter("weight"))
    return model


def make_data(photos: str, augment: TrainTransform, batch_size: int) -> ImageData:
    return ImageData(
        root=photos,
        image_size=8,
        batch_size=batch_size,
        loading=Loading(num_workers=0),
        augment=augment,
        inputs=InputFormat(crop_fraction=1.0),
    )


def make_trainer(processes: int, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, **options},
    )


def main(photos: str, processes: int, out: str) -> None:
    augment = TrainTransform(crop="inception", flip=True, randaugment=(2, 9))
    data = make_data(photos, augment, 8 // processes)
    # A time limit, because its clock is in the schedule and has to be the same for all.
    limits: dict[str, Any] = {"max_epochs": 2, "max_time": {"hours": 100}}
    trained = make_model()
    make_trainer(processes, callbacks=[EMA(0.5)], **limits).fit(trained, data)

    metrics: dict[str, float] = {}
    trainer, model = make_trainer(processes), make_model()
    for evaluate in (trainer.validate, trainer.test):
        evaluate(model, datamodule=data, verbose=False)
        metrics |= {name: value.item() for name, value in trainer.callback_metrics.items()}
    trainer.test(make_model(many=True), datamodule=ManyLabels(), verbose=False)
    metrics |= {f"many/{name}": value.item() for name, value in trainer.callback_metrics.items()}
    results = {"metrics": metrics, "weights": trained.model.state_dict()}
    torch.save(results, f"{out}.{trainer.global_rank}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
