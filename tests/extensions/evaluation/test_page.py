"""The Python of docs/evaluation.md runs as printed."""

from pathlib import Path

import numpy as np
import torch

from tests.test_docs import PAGES, blocks, files, run
from vit.models.zoo import build_model, model_config
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

__all__ = ["files"]  # a fixture

CALIBRATION, PYTHON = blocks(PAGES["evaluation.md"])


def test_calibration_of_a_run(files: Path) -> None:
    config = model_config("vit_ti16", num_classes=3, depth=1, image_size=32)
    model, generator = build_model(config), torch.Generator().manual_seed(0)
    torch.nn.init.normal_(model.head.weight, generator=generator)
    preprocess = Preprocess(image_size=(32, 32), crop_fraction=1.0).to_dict()
    names = ["blue", "green", "red"]
    save_native(
        files / "runs/my_photos-finetune/model",
        model,
        classes=names,
        preprocess=preprocess,
        extra={},
    )
    names = run(CALIBRATION)
    assert names["val"].values.shape == names["test"].values.shape == (3, 3)
    assert names["temperature"] > 0
    assert 0 <= min(names["before"], names["after"])
    same = names["temperature"] == 1  # where three images have no better one
    assert (names["before"] == names["after"]) == same
    curve = names["reliability"](np.arange(30) / 30, np.arange(30) > 9, spacing="count")
    assert curve.count.tolist() == [2] * 15


def test_classifiers_on_frozen_features(files: Path) -> None:
    names = run(PYTHON)
    assert len(list(Path("features").iterdir())) == 2
    assert [len(draws) for draws in names["shots"].values()] == [3, 3]
    assert names["shots"][5] == [1.0] * 3 and names["nearest"] == {10: 1.0, 20: 1.0}
    assert names["probe"].accuracy == 1.0 and names["probe"].chosen in names["probe"].sweep
