from pathlib import Path

import pytest
import torch

from vit.data import module
from vit.training.callbacks.invariants import is_whole
from vit.training.mixing import Mixing

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_a_missing_image_is_noticed(
    stage: str, make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    getattr(trainer, stage)(make_model(), datamodule=make_data(), verbose=False)
    monkeypatch.setattr(module, "evaluated", lambda total, *_: range(1, total))
    split, size = ("val", 9) if stage == "validate" else ("test", 7)
    with pytest.raises(RuntimeError, match=f"{split}: {size - 1} images were counted, the set has"):
        getattr(trainer, stage)(make_model(), datamodule=make_data(), verbose=False)


def test_the_split_that_is_tested_is_the_one_that_is_counted(
    make_data, make_model, make_trainer
) -> None:
    data, model = make_data(), make_model()
    data.evaluation_split = model.evaluation_split = "train"
    [scores] = make_trainer().test(model, datamodule=data, verbose=False)
    assert "train/acc1" in scores
    data.evaluation_split = "val"
    with pytest.raises(RuntimeError, match="train: 9 images were counted, the set has 44"):
        make_trainer().test(model, datamodule=data, verbose=False)


def test_skipped_images_are_known(
    training_photos: Path, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    import shutil

    root = tmp_path / "copy"
    shutil.copytree(training_photos, root)
    (root / "test" / "a" / "0.png").write_bytes(b"not an image")
    data = make_data(root=str(root), on_error="skip")
    model = make_model()
    make_trainer().test(model, datamodule=data, verbose=False)
    assert int(model.test_metrics.images.compute()) == 6


def test_a_limited_evaluation_is_not_counted(make_data, make_model, make_trainer) -> None:
    make_trainer(limit_val_batches=1).validate(make_model(), make_data(), verbose=False)
    make_trainer(fast_dev_run=True).fit(make_model(), make_data())
    assert is_whole(1.0) and not is_whole(1) and not is_whole(0.5)


def test_images_are_counted_exactly_and_logged(make_data, make_model, make_trainer) -> None:
    data = make_data()
    data.consumed_samples = 100_000_000 // 40 * 40 + 8  # float32 counts in eights up there
    trainer = make_trainer(max_steps=1, limit_val_batches=0)
    before = data.consumed_samples
    trainer.fit(make_model(mixing=Mixing(mixup=0.2)), data)
    assert data.consumed_samples == before + 8
    assert trainer.callback_metrics["images"].dtype == torch.float64
    assert trainer.callback_metrics["images"].item() == data.consumed_samples
