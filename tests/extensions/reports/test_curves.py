"""The curves of a run show each figure where and when it was measured."""

import csv
import warnings

import pytest

from vit.extensions.reports.curves import curves, panels_of
from vit.extensions.reports.drawing import png
from vit.extensions.reports.run_list import read_history


def drawn(rows):
    """Panel title -> line label -> (x, y) of the figure."""
    figure = curves(rows, list(panels_of(rows)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png(figure)
    return {
        axes.get_title(loc="left"): {
            line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist())
            for line in axes.lines
        }
        for axes in figure.axes
    }, figure


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return read_history(path)


def test_curves_show_loss_accuracy_and_learning_rate_by_epoch(tmp_path, write_history):
    write_history(tmp_path / "metrics.csv", epochs=4, steps=10)
    panels, figure = drawn(read_history(tmp_path / "metrics.csv"))
    assert list(panels) == ["Loss", "Accuracy", "Learning rate"]
    assert list(panels["Loss"]) == ["train", "val"]
    assert panels["Loss"]["val"] == ([1, 2, 3, 4], [0.25, 0.125, pytest.approx(2.5 / 30), 0.0625])
    assert panels["Accuracy"]["val"][1] == pytest.approx([0.9, 0.95, 1 - 1 / 30, 0.975])
    assert len(panels["Loss"]["train"][0]) == 40
    assert {axes.get_xlabel() for axes in figure.axes} == {"epoch"}


def test_the_best_constant_prediction_is_drawn_with_the_scores(tmp_path):
    rows = [
        {"step": s, "train/loss": 3 - s, "val/loss": 2, "val/constant_loss": 4.5, "val/acc1": 0.2}
        | {"val/constant_acc1": 0.1}
        for s in range(3)
    ]
    panels, _ = drawn(write(tmp_path / "metrics.csv", rows))
    assert panels["Loss"]["val, best constant"][1] == [4.5] * 3
    assert panels["Accuracy"]["val, most frequent"][1] == [0.1] * 3


def test_one_epoch_is_drawn_by_images_seen(tmp_path, write_history):
    write_history(tmp_path / "metrics.csv", epochs=1)
    panels, figure = drawn(read_history(tmp_path / "metrics.csv"))
    assert panels["Loss"]["val"][0] == [320]
    assert figure.axes[0].get_xlabel() == "images seen"


def test_blanks_and_non_finite_cells_are_left_out(tmp_path):
    rows = [{"step": 1, "train/loss": "nan", "val/loss": ""}]
    rows += [{"step": 2, "train/loss": "inf", "val/loss": 0.5}, {"step": 3, "train/loss": 0.4}]
    panels, _ = drawn(write(tmp_path / "m.csv", rows))
    assert panels["Loss"] == {"train": ([4.0], [0.4]), "val": ([3.0], [0.5])}


def test_a_final_score_does_not_bend_the_curve_of_training(tmp_path):
    rows = [
        {"step": 10, "epoch": 0, "images": 320, "val/acc1": 0.8},
        {"step": 20, "epoch": 1, "images": 640, "val/acc1": 0.7},
        {"step": 20, "epoch": 2, "val/acc1": 0.8},  # the best weights once more
        {"step": 20, "epoch": 0, "images": 9999, "test/acc1": 0.8},
    ]
    panels, _ = drawn(write(tmp_path / "m.csv", rows))
    assert panels["Accuracy"]["val"] == ([1, 2], [0.8, 0.7])


def test_several_labels_an_image_are_drawn_as_map_and_f1(tmp_path):
    rows = [{"step": s, "val/map": s / 9, "val/f1": s / 10} for s in (1, 2)]
    panels, _ = drawn(write(tmp_path / "m.csv", rows))
    assert list(panels["mAP and F1"]) == ["val mAP", "val F1"]
    single = [{"val/acc1": 0.5, "val/f1": 0.4}]
    assert panels_of(single) == {"Accuracy": ("val/acc1",)}


def test_the_watch_of_a_training_without_labels_is_drawn_beside_its_loss(tmp_path):
    rows = [{"step": s, "images": 8 * s + 8, "train/loss": 2.0} for s in range(100)]
    rows[24] |= {"effective_rank": 5.0, "yardstick/knn": 0.4}
    rows[49] |= {"effective_rank": 4.0, "yardstick/knn": 0.5}
    panels, _ = drawn(write(tmp_path / "m.csv", rows))
    lines = {name: [*panel.values()] for name, panel in panels.items()}
    assert lines["Effective rank"] == [([200, 400], [5.0, 4.0])]
    assert lines["Named by neighbours"] == [([200, 400], [0.4, 0.5])]


def test_noisy_batch_losses_get_a_running_mean(tmp_path):
    rows = [{"step": s, "train/loss": 1 + s % 2} for s in range(400)]
    figure = curves(write(tmp_path / "m.csv", rows), ["Loss"])
    raw, mean = (line.get_ydata() for line in figure.axes[0].lines)
    assert raw.tolist() == [1 + s % 2 for s in range(400)]
    assert mean == pytest.approx([1.5] * len(mean))
