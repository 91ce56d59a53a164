"""Training with several labels per image, and the thresholds that it ends with."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.grouped import tuned
from tests.training.callbacks.test_by_size import Ends, weights
from vit.extensions.multilabel.average_precision import best_thresholds
from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.losses import Loss
from vit.training.mixing import Mixing

pytestmark = pytest.mark.filterwarnings("ignore")
__all__ = ["weights"]


def test_several_labels_an_image_train_and_score(make_model, make_trainer) -> None:
    random = torch.Generator().manual_seed(0)
    samples = [
        (torch.randn(3, 8, 8, generator=random), (torch.rand(3, generator=random) < 0.5).float())
        for _ in range(16)
    ]
    loader = torch.utils.data.DataLoader(samples, batch_size=6)
    model = make_model(multilabel=True, loss=Loss(kind="sigmoid"), mixing=Mixing(cutmix=1.0))
    trainer = make_trainer(max_epochs=1)
    trainer.fit(model, loader, loader)
    assert {"val/map", "val/f1", "val/exact", "val/loss"} <= trainer.callback_metrics.keys()
    [probabilities, *_] = trainer.predict(model, loader)
    images, _ = next(iter(loader))
    torch.testing.assert_close(probabilities, model.eval()(images).sigmoid())


def test_thresholds_are_those_of_the_averaged_weights(
    weights: str, make_data, make_trainer, training_photos: Path, tmp_path: Path
) -> None:
    random, rows = np.random.default_rng(0), ["path,label,split"]
    for number, file in enumerate(sorted(training_photos.rglob("*.*"))):
        names = [name for name in "abc" if random.random() < 0.5]
        if file.suffix in {".png", ".jpg"}:
            rows.append(f"{file},{'|'.join(names)},{'val' if number % 3 == 0 else 'train'}")
    (tmp_path / "several.csv").write_text("\n".join(rows))
    data, ends = make_data(root=str(tmp_path / "several.csv")), Ends()
    model = tuned(weights, multilabel=True, loss=Loss(kind="sigmoid"))
    make_trainer(max_epochs=-1, max_steps=12, callbacks=[FineTuneBySize(), ends]).fit(model, data)

    def scored(state: dict[str, torch.Tensor]) -> torch.Tensor:
        """Probabilities of the validation images, `k n`."""
        other = tuned(weights).eval()
        other.model.load_state_dict(state)
        with torch.inference_mode():
            return other(data.preprocess.normalize(torch.cat(images))).sigmoid().T

    images, labels, _ = zip(*data.evaluation_loader("val"), strict=True)
    truth = torch.cat(labels).long().T

    expected = best_thresholds(scored(model.model.state_dict()), truth)
    chosen = model.test_metrics.thresholds
    assert chosen == pytest.approx(expected.tolist())
    assert chosen != pytest.approx(best_thresholds(scored(ends.ends[1]), truth).tolist())
