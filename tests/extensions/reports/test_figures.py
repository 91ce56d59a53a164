"""Figures of a scored run: shares and names of the confusion, bars, intervals, worst images."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix as sklearn_confusion

from vit.extensions.reports.drawing import png
from vit.extensions.reports.figures import (
    SHOWN_CLASSES,
    WrongImage,
    confusion,
    most_confused_classes,
    reliability,
    worst,
)
from vit.extensions.reports.intervals import wilson_interval
from vit.extensions.reports.lettering import columns, shorten
from vit.extensions.reports.reliability import reliability as curve


def boxes(figure, texts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png(figure)
    return [t.get_window_extent() for t in texts if t.get_text()]


def test_rows_of_the_confusion_are_shares_of_the_true_class():
    labels, predicted = np.random.default_rng(0).integers(0, 5, (2, 200))
    figure = confusion(sklearn_confusion(labels, predicted), list("abcde"))
    drawn = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(drawn, sklearn_confusion(labels, predicted, normalize="true"))


def test_confusion_cells_tell_small_shares_from_none_and_large_from_all():
    matrix = np.array([[999, 1, 0, 0], [0, 7, 0, 0], [0, 5, 5, 0], [0] * 4])
    texts = {t.get_position(): t.get_text() for t in confusion(matrix, list("abcd")).axes[0].texts}
    assert texts == {(0, 0): ">99", (1, 0): "<1", (1, 1): "100", (1, 2): "50", (2, 2): "50"}


@pytest.mark.parametrize(
    ("num_classes", "name"),
    [(2, "dog"), (100, "a very long class name {:03}")],
)
def test_confusion_names_neither_overlap_nor_leave_the_picture(num_classes, name):
    classes = [name.format(i) for i in range(num_classes)]
    matrix = np.random.default_rng(1).integers(0, 30, (num_classes, num_classes))
    figure = confusion(matrix, classes)
    axes = figure.axes[0]
    across = boxes(figure, axes.get_xticklabels())
    down = boxes(figure, axes.get_yticklabels())
    assert len(across) == len(down) == min(num_classes, SHOWN_CLASSES)
    assert all(a.x1 <= b.x0 for a, b in pairwise(across))
    assert all(a.y0 >= b.y1 for a, b in pairwise(down))
    crop = figure.get_tightbbox().padded(0.08)
    for box in [*across, *down]:
        assert crop.x0 * figure.dpi <= box.x0 and box.x1 <= crop.x1 * figure.dpi
    assert all(box.x1 <= axes.get_window_extent().x0 for box in down)


def test_many_classes_show_those_in_the_largest_errors_and_say_so():
    matrix = np.diag(np.full(100, 50))
    for pair in range(20):
        matrix[pair, 99 - pair] = 30 - pair
    shown = most_confused_classes(matrix)
    assert shown == [*range(15), *range(85, 100)]
    figure = confusion(matrix, [f"class {i}" for i in range(100)])
    assert "30 of 100" in figure.get_suptitle()
    assert most_confused_classes(np.diag(np.full(70, 5))) == [*range(30)]  # no errors
    # A row stays a share of all 80 images of its class.
    assert figure.axes[0].images[0].get_array()[0, 0] == pytest.approx(50 / 80)


def test_reliability_shows_shares_with_wilson_intervals_and_counts():
    groups = curve(np.array([0.1, 0.1, 0.9, 0.9, 0.9]), np.array([0, 1, 1, 1, 0]))
    figure = reliability(groups)
    upper, lower = figure.axes
    assert upper.lines[1].get_ydata().tolist() == pytest.approx([1 / 2, 2 / 3])
    assert upper.lines[1].get_xdata().tolist() == pytest.approx([0.1, 0.9])
    low, high = (segment[:, 1] for segment in upper.collections[0].get_segments())
    assert tuple(low) == pytest.approx(wilson_interval(1, 2))
    assert tuple(high) == pytest.approx(wilson_interval(2, 3))
    assert [bar.get_height() for bar in lower.patches] == [2, 3]


def wrong(number: int, **changes) -> WrongImage:
    given = {
        "row": number,
        "image": Image.new("RGB", (40 + number, 30), "teal"),
        "name": f"photos/{number}.jpg",
        "true": (1,),
        "predicted": 0,
        "probability": 0.987,
    }
    return WrongImage(**(given | changes))


def test_worst_survives_missing_images_no_labels_and_names_in_several_scripts():
    classes = ["猫", "كلب", "\ue000"]
    items = [wrong(0, image=None, true=()), wrong(1, true=(0, 1, 2)), wrong(2, predicted=2)]
    figure = worst(items, classes, "title")
    boxes(figure, [])
    words = [text.get_text() for text in figure.texts]
    assert {"cannot be opened", "true: no class", "#2", "98.7 %", "photos/0.jpg"} <= set(words)


def test_wide_characters_take_two_columns():
    assert columns("猫cat") == 5
    assert shorten("猫猫猫猫猫猫", 7) == "猫…猫"
    assert shorten("a very long class name 017", 12) == "a very…e 017"
