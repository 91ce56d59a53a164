import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from tests.grouped import image_data, silent_trainer
from vit.data.decode import open_image
from vit.data.module import ImageData, InputFormat, Sampling
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.preprocessing import Preprocess

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
PLAIN = TrainTransform(crop="none", flip=False)


class Recorder(LightningModule):
    """A linear model that notes which images it saw, in what batches, with what pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.seen: dict[str, list[tuple[list[int], float]]] = {}

    def _note(self, stage: str, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        images, labels, indices = batch
        self.seen.setdefault(stage, []).append((indices.tolist(), images.double().sum().item()))
        logits = self.linear(images.mean((2, 3)))
        return torch.nn.functional.cross_entropy(logits, labels)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._note("train", batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._note("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._note("test", batch)

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self._note("predict", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def indices(self, stage: str) -> list[int]:
        return [index for batch, _ in self.seen.get(stage, []) for index in batch]


class Count(Callback):
    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        data: Any = trainer.datamodule  # pyright: ignore
        data.consumed_samples += data.batch_size * trainer.world_size


def trainer(**options: Any) -> Trainer:
    return silent_trainer(**{"callbacks": [Count()], **options})


@pytest.fixture
def photos(tmp_path: Path, make_tree) -> Path:
    """60 images of two classes: train 48, val 6, test 6."""
    return make_tree(tmp_path / "photos", {"cat": 20, "dog": 40})


def data(photos: Path, **options: Any) -> ImageData:
    return image_data(
        root=str(photos), **{"image_size": 8, "batch_size": 8, "num_workers": 0} | options
    )


def first(batches: Any) -> tuple[Tensor, Tensor, Tensor]:
    return next(iter(batches))


def test_properties_need_no_trainer(photos):
    module = data(photos, image_size=(8, 16))
    assert "splits" not in vars(module), "scanned at the first use only"
    assert module.classes == ["cat", "dog"] and module.num_classes == 2
    assert module.counts == [16, 32] and not module.multilabel
    assert module.open_image("test", 1).size == (10, 8)
    assert module.image_size == (8, 16) and module.preprocess.image_size == (8, 16)
    assert module.samples_per_epoch(1) == 48 and module.samples_per_epoch(5) == 40
    assert [module.expected_images(s) for s in ("train", "val", "test")] == [48, 6, 6]
    assert module.summary() == (
        "60 images of 2 classes: train 48, val 6, test 6 (val and test cut from train, seed 0)"
    )


def test_some_data_must_be_given():
    # "" is not the current directory, and no reason to take the data set of the recipe.
    options: list[dict[str, Any]] = [{}, {"root": ""}, {"dataset": "digits", "root": ""}]
    for given in options:
        with pytest.raises(UserError, match="give --data with a folder, a CSV, or the name"):
            ImageData(**given)


def test_root_wins_over_the_dataset(photos):
    assert ImageData("digits").num_classes == 10
    assert ImageData("digits", str(photos)).classes == ["cat", "dog"]
    with pytest.raises(UserError, match="unknown dataset 'a name that nobody knows'"):
        ImageData("a name that nobody knows", str(photos))


def test_a_manifest_is_a_root_and_may_have_several_labels(photos):
    rows = [f"cat/{index}.jpg,{'a|b' if index % 2 else 'b'}" for index in range(20)]
    (photos / "list.csv").write_text("\n".join(["path,label", *rows]))
    module = data(photos / "list.csv", val_fraction=0.0, test_fraction=0.0, augment=PLAIN)
    assert module.multilabel and module.counts == [10, 20]
    labels = first(module.train_dataloader())[1]
    assert labels.dtype == torch.float32 and labels.shape == (8, 2)
    with pytest.raises(UserError, match="balanced needs one label per image"):
        data(photos / "list.csv", sampling=Sampling(balanced=True)).train_dataloader()


def test_every_field_of_inputs_reaches_the_preprocessing(photos):
    fields: dict[str, Any] = {
        **{"resize": "squash", "crop_fraction": 0.5, "interpolation": "bicubic"},
        **{"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)},
    }
    given = data(photos, inputs=InputFormat(**fields)).preprocess
    assert given == Preprocess(image_size=(8, 8), **fields)


def test_another_preprocessing_is_that_of_the_next_images(photos):
    module = data(photos)
    first(module.evaluation_loader("train"))
    module.preprocess = other = replace(module.preprocess, image_size=(16, 24), resize="squash")
    picture = open_image(module.splits.train.items[0])
    assert torch.equal(first(module.evaluation_loader("train"))[0][0], other(picture))


def test_augment_is_used_in_training_only(photos):
    flipped = data(photos, augment=TrainTransform(crop="inception", crop_area=(0.1, 0.2)))
    plain = data(photos, augment=PLAIN)
    one, two = first(flipped.train_dataloader()), first(plain.train_dataloader())
    assert one[2].tolist() == two[2].tolist()
    assert not torch.equal(one[0], two[0])
    other = first(data(photos, seed=1, augment=PLAIN).train_dataloader())
    assert other[2].tolist() != two[2].tolist()
    assert torch.equal(first(flipped.val_dataloader())[0], first(plain.val_dataloader())[0])


def test_sampling_reaches_the_sampler(photos, make_tree):
    root = make_tree(photos.parent / "uneven", {"rare": 4, "common": 76})
    options = {"val_fraction": 0.0, "test_fraction": 0.0, "batch_size": 80, "augment": PLAIN}
    module = data(root, sampling=Sampling(balanced=True), **options)
    counts = torch.bincount(first(module.train_dataloader())[1])
    assert abs(counts[0].item() - 40) < 20  # 80 draws at 1/2: standard deviation 4.5
    plain = first(data(root, **options).train_dataloader())[1]
    assert torch.bincount(plain).tolist() == [76, 4]
    indices = first(data(photos, sampling=Sampling(repeats=4)).train_dataloader())[2].tolist()
    assert len(set(indices)) == 2


def test_on_error_skip_reaches_every_split(photos):
    module = data(photos, on_error="skip")
    broken = module.image_set("val").items[2]
    Path(str(broken)).write_bytes(b"")
    assert first(module.val_dataloader())[2].tolist() == [0, 1, 3, 4, 5]
    assert module.skipped_images("val") == 1 and module.skipped_images("test") == 0
    with pytest.raises(UserError, match=os.path.basename(str(broken))):
        first(data(photos).val_dataloader())


def test_num_workers_are_taken_or_chosen(photos):
    assert data(photos, num_workers=3).train_dataloader().num_workers == 3
    chosen = data(photos, num_workers=None).train_dataloader().num_workers
    assert chosen == min(len(os.sched_getaffinity(0)), 8)
    digits = ImageData("digits", image_size=8, augment=PLAIN)
    assert digits.train_dataloader().num_workers == 0 and digits.batch_size == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"num_workers": -1}, r"num_workers=-1 must be at least 0"),
        ({"image_size": 0}, "image_size"),
        ({"cache": "ram"}, "cache='ram' is unknown; choose auto | none"),
        ({"labels": "trees"}, "labels='trees' is unknown; choose plain | tree"),
        (
            {"image_size": 32, "augment": TrainTransform(crop="resize_random", resize_size=24)},
            "resize_size=24 is smaller than image_size",
        ),
        ({"inputs": InputFormat(crop_fraction=1.5)}, "crop_fraction=1.5"),
    ],
)
def test_impossible_values_are_refused_before_any_scan(options, message):
    with pytest.raises(UserError, match=message):
        data(Path("nowhere"), **options)


def test_training_sees_every_image_once_an_epoch_and_evaluation_too(photos):
    model, module = Recorder(), data(photos)
    trainer(max_epochs=2).fit(model, datamodule=module)
    seen = model.indices("train")
    assert sorted(seen[:48]) == sorted(seen[48:]) == list(range(48)) and seen[:48] != seen[48:]
    assert model.indices("val") == [*range(6)] * 2
    digests = {"splits": module.digests, "contents": None}  # which shards have
    assert module.state_dict() == {"consumed_samples": 96, **digests}
    trainer().test(model, datamodule=module, verbose=False)
    assert model.indices("test") == [*range(6)]
    module.evaluation_split = "train"
    trainer().test(model, datamodule=module, verbose=False)
    assert model.indices("test")[6:] == [*range(48)]
    trainer().predict(model, datamodule=module)
    assert model.indices("predict") == [*range(48)]


@pytest.mark.parametrize(("num_workers", "ends"), [(0, (4, 8, 12, 16)), (2, (8,))])
def test_resume_sees_exactly_the_rest(num_workers, ends, photos, tmp_path):
    def new() -> ImageData:
        # The default augmentation, so that pixels are compared, too.
        return data(photos, num_workers=num_workers)

    whole = Recorder()
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    trainer(max_epochs=3, callbacks=[Count(), saver]).fit(whole, datamodule=new())
    assert len(whole.seen["train"]) == 18
    for done in ends:  # of 6 batches per epoch
        rest = Recorder()
        trainer(max_epochs=3).fit(rest, datamodule=new(), ckpt_path=tmp_path / f"step={done}.ckpt")
        assert rest.seen["train"] == whole.seen["train"][done:]
        assert len(rest.seen["val"]) == 3 - done // 6


@pytest.mark.parametrize(("limit", "batches", "num_workers"), [(0.5, 3, 0), (4, 4, 2)])
def test_limited_epochs_go_through_all_images(limit, batches, num_workers, photos):
    whole, model = Recorder(), Recorder()
    trainer(max_epochs=4).fit(whole, datamodule=data(photos))
    module = data(photos, num_workers=num_workers)
    trainer(max_epochs=4, limit_train_batches=limit).fit(model, datamodule=module)
    assert model.seen["train"] == whole.seen["train"][: 4 * batches]
    assert model.indices("val") == [*range(6)] * 4


def test_overfit_batches_is_refused(photos):
    with pytest.raises(UserError, match="overfit_batches draws other images"):
        trainer(max_epochs=1, overfit_batches=1).fit(Recorder(), datamodule=data(photos))


def test_a_fit_without_val_runs_and_a_validation_without_val_is_an_error(photos):
    model, module = Recorder(), data(photos, val_fraction=0.0, test_fraction=0.0)
    trainer(max_epochs=1).fit(model, datamodule=module)
    assert len(model.indices("train")) == 56 and model.indices("val") == []
    with pytest.raises(UserError, match="photos has no val split"):
        trainer().validate(model, datamodule=module, verbose=False)
    with pytest.raises(UserError, match="photos has no test split"):
        trainer().test(model, datamodule=module, verbose=False)


def as_rank(module: ImageData, rank: int, world_size: int) -> ImageData:
    module.trainer = SimpleNamespace(  # pyright: ignore
        global_rank=rank,
        world_size=world_size,
        num_devices=world_size,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        accumulate_grad_batches=1,
        state=SimpleNamespace(fn=None),
    )
    return module


def test_a_rank_without_images_is_allowed(photos):
    batches = list(as_rank(data(photos), 7, 8).val_dataloader())
    # One batch of nothing: a process without batches would leave the others waiting for it.
    assert [(len(images), len(labels)) for images, labels, _ in batches] == [(0, 0)]


@pytest.mark.parametrize(
    ("given", "batch", "accumulated"),
    [
        ({"global_batch": 24}, 24, 1),
        ({"global_batch": 24, "accumulate": 3}, 8, 3),
        ({"global_batch": 24, "batch_size": 8}, 8, 3),
        ({"batch_size": 8, "accumulate": 2}, 8, 2),
    ],
)
def test_the_images_of_a_step_are_those_of_global_batch(photos, given, batch, accumulated):
    given = {"batch_size": None, **given}
    accumulate = given.pop("accumulate", 1)
    module, model = data(photos, val_fraction=0.0, test_fraction=0.0, **given), Recorder()
    loop = trainer(max_steps=2, accumulate_grad_batches=accumulate)
    loop.fit(model, datamodule=module)
    assert (module.batch_size, loop.accumulate_grad_batches) == (batch, accumulated)
    images = given.get("global_batch") or batch * accumulated
    assert (loop.global_step, module.consumed_samples) == (2, 2 * images)


@pytest.mark.parametrize(
    ("given", "accumulate", "message"),
    [
        (
            {"global_batch": 25, "batch_size": None},
            2,
            "=25 must be a multiple of 2 .* as 24",
        ),
        ({"global_batch": 24, "batch_size": 16}, 1, "global_batch=24 contradicts batch_size=16"),
        ({"global_batch": 24, "batch_size": 8}, 2, "contradicts .* accumulate_grad_batches=2"),
    ],
)
def test_a_global_batch_that_cannot_be_divided_is_refused(photos, given, accumulate, message):
    loop = trainer(max_epochs=1, accumulate_grad_batches=accumulate)
    with pytest.raises(UserError, match=message):
        loop.fit(Recorder(), datamodule=data(photos, **given))
