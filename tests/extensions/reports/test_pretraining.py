"""The page and figures of masked patch prediction."""

import json
from pathlib import Path

import numpy as np
import pytest

from vit.extensions.reports.drawing import png
from vit.extensions.reports.pretraining import Examples, mosaic, write_pretraining

pytestmark = pytest.mark.usefixtures("unpainted")
METRICS = {"val/loss": 2.5, "val/acc1": 0.31}
METRICS |= {"val/constant_loss": 4.25, "val/constant_acc1": 0.08}


@pytest.fixture
def examples() -> Examples:
    """Three images of 8 x 12 pixels; the upper left patch of 4 pixels is corrupted."""
    corrupted = np.zeros((3, 8, 12), dtype=bool)
    corrupted[:, :4, :4] = True
    arrays = {
        name: np.full((3, 8, 12, 3), value, dtype=np.uint8)
        for name, value in (("images", 10), ("seen", 20), ("predicted", 30), ("true", 40))
    }
    arrays["images"] += np.arange(3, dtype=np.uint8)[:, None, None, None]
    return Examples(**arrays, corrupted=corrupted, caption="the image; the rest.")


def test_predictions_are_shown_where_there_are_any(examples: Examples) -> None:
    figure = mosaic(examples)
    axes = figure.axes[0]
    whole = axes.images[0].get_array()
    assert whole.shape == (2 * 8 + 2, 2 * (4 * 12 + 3) + 2, 4)
    whole, alpha = whole[..., :3], whole[..., 3]
    for number, (top, first) in enumerate(((0, 0), (0, 53), (10, 0))):
        image, seen, predicted, true = (
            whole[top : top + 8, first + 13 * i : first + 13 * i + 12] for i in range(4)
        )
        assert (image == 10 + number).all() and (seen == 20).all()
        assert (
            alpha[top : top + 8, first : first + 25][:, [*range(12), *range(13, 25)]] == 255
        ).all()
        for column, picture, value in ((2, predicted, 30), (3, true, 40)):
            assert (picture[:4, :4] == value).all()
            opaque = alpha[top : top + 8, first + 13 * column : first + 13 * column + 12] == 255
            assert opaque[:4, :4].all() and not opaque[4:].any() and not opaque[:, 4:].any()
    assert not alpha[10:, 53:].any()  # there is no fourth image
    columns = ["image", "seen", "predicted", "true"]
    assert [text.get_text() for text in axes.texts] == 2 * columns
    assert [text.get_position()[0] for text in axes.texts[3:5]] == [39 + 6, 53 + 6]
    assert png(figure)


@pytest.fixture
def run(tmp_path: Path, write_history) -> Path:
    write_history(tmp_path / "metrics.csv", epochs=2)
    (tmp_path / "config.yaml").write_text("task: masked_patches\n")
    summary = {
        "metrics": METRICS,
        "headline": "val loss  2.5000",
        "images": {"train": 90, "val": 10, "test": 0},
        "parameters": 1234567,
        "command": "vit fit -c pretrain/masked_patches",
        "classes": [],
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_the_page_has_metrics_and_the_next_commands(run: Path, examples: Examples) -> None:
    write_pretraining(run, "val", examples, "Constant: 4.2500; 31.0 % are right.")
    page = (run / "report.html").read_text()
    for words in (
        "2.500",
        "4.250",
        "31.0",
        "1,234,567",
        "train 90, val 10<",
        "From left to right: the image; the rest.<",
        "task: masked_patches",
    ):
        assert words in page, words
    assert (run / "curves.png").stat().st_size and (run / "masked_patches.png").stat().st_size


def test_a_run_that_was_not_scored_has_a_page_all_the_same(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(
        json.dumps({**summary, "metrics": {}, "headline": "of a yardstick"})
    )
    write_pretraining(run, "val", None, "")
    page = (run / "report.html").read_text()
    assert "Predicted colours" not in page and "Training" in page and "of a yardstick" in page
    assert not (run / "masked_patches.png").exists()
