import csv
import dataclasses
import re
import warnings

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score

from vit.errors import UserError
from vit.reports.results import Predictions, examine, worst_predictions, write_csv, write_results

CLASSES = [f"class {i}" for i in range(10)]


def write(run_dir, predictions, open_image, classes=CLASSES, split="test"):
    """write_results, with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return write_results(
            run_dir, split=split, classes=classes, predictions=predictions, open_image=open_image
        )


def few(**changes) -> Predictions:
    """Three images of two classes: right, wrong, wrong with more confidence."""
    given = {
        "indices": np.array([0, 1, 2]),
        "names": ["a.jpg", "b.jpg", "c.jpg"],
        "labels": np.array([0, 1, 0]),
        "top_classes": np.array([[0, 1], [0, 1], [1, 0]]),
        "top_probabilities": np.array([[0.9, 0.1], [0.7, 0.3], [0.8, 0.2]]),
        "label_probabilities": np.array([0.9, 0.3, 0.2]),
    }
    return Predictions(**(given | changes))


def test_a_run_gets_its_pictures_predictions_and_report(run_dir, answer, digit):
    files = write(run_dir, answer().predictions, digit)
    assert {file.name for file in files} == {
        "predictions.csv", "worst.png", "curves.png", "confusion.png", "report.html"
    }  # fmt: skip
    assert files[-1] == run_dir / "report.html"
    for file in files:
        assert file.stat().st_size > 0
        if file.suffix == ".png":
            Image.open(file).verify()


def test_a_bare_directory_gets_what_can_be_known(tmp_path, answer, digit):
    files = write(tmp_path, answer().predictions, digit)
    assert [f.name for f in files] == [
        "predictions.csv", "worst.png", "confusion.png", "report.html"
    ]  # fmt: skip
    page = re.sub('base64,[^"]*', "", (tmp_path / "report.html").read_text())
    assert "None" not in page and "nan" not in page


def test_multilabel_gets_a_bar_a_class_instead_of_a_confusion(tmp_path, answer, digit):
    given = answer(multilabel=True)
    files = [f.name for f in write(tmp_path, given.predictions, digit)]
    assert "per_class.png" in files and "confusion.png" not in files


def test_predictions_csv_has_one_row_an_image_in_data_set_order(run_dir, digit):
    shuffled = few(indices=np.array([2, 0, 1]))
    write(run_dir, shuffled, digit, classes=["cat", "dog"])
    rows = list(csv.DictReader((run_dir / "predictions.csv").open(newline="")))
    assert [row["index"] for row in rows] == ["0", "1", "2"]
    assert rows[2] == {
        "index": "2", "image": "a.jpg", "label": "cat", "label_probability": "0.9",
        "predicted": "cat", "probability": "0.9", "correct": "1",
        "predicted_2": "dog", "probability_2": "0.1",
    }  # fmt: skip
    assert [row["correct"] for row in rows] == ["0", "0", "1"]


def test_predictions_csv_lists_the_five_most_probable_classes(tmp_path, answer):
    predictions = answer(top=10).predictions
    write_csv(tmp_path / "p.csv", CLASSES, predictions)
    rows = list(csv.reader((tmp_path / "p.csv").open(newline="")))
    assert rows[0][-2:] == ["predicted_5", "probability_5"]
    assert len(rows) == len(predictions) + 1
    assert rows[1][-2] == CLASSES[predictions.top_classes[0, 4]]


def test_predictions_csv_separates_several_labels_and_keeps_odd_names(tmp_path):
    predictions = few(
        labels=np.array([[1, 1], [0, 0], [0, 1]]), names=["a,\n.jpg", "猫.jpg", "bad\udcff.jpg"]
    )
    write_csv(tmp_path / "p.csv", ["x", 'say "y"'], predictions)
    rows = list(csv.DictReader((tmp_path / "p.csv").open(newline="", encoding="utf-8")))
    assert [row["label"] for row in rows] == ['x|say "y"', "", 'say "y"']
    assert [row["image"] for row in rows] == ["a,\n.jpg", "猫.jpg", "bad\\udcff.jpg"]
    assert [row["correct"] for row in rows] == ["1", "0", "1"]


def test_worst_are_the_wrong_ones_most_confident_first():
    assert worst_predictions(few()) == [(2, 0), (1, 0)]
    assert worst_predictions(few(labels=np.array([0, 0, 1]))) == []


def test_worst_of_several_labels_is_the_first_class_that_is_not_there():
    predictions = few(
        labels=np.array([[1, 0], [1, 0], [0, 0]]),
        top_probabilities=np.array([[0.9, 0.8], [0.9, 0.49], [0.6, 0.5]]),
    )
    # Row 0: class 0 is there, class 1 at 0.8 is not. Row 1: class 1 stays below one half.
    assert worst_predictions(predictions) == [(0, 1), (2, 0)]


@pytest.mark.parametrize(
    ("strength", "title", "shown"),
    [(60.0, "No errors in 120 test images", 0), (0.0, "The 20 most confident of ", 20)],
)
def test_the_title_counts_the_errors(tmp_path, answer, digit, strength, title, shown):
    found = examine(tmp_path, "test", CLASSES, answer(strength=strength).predictions, digit)
    assert found.wrong_title.startswith(title)
    assert len(found.wrong) == shown


def test_few_errors_are_all_shown_and_counted(tmp_path, digit):
    found = examine(tmp_path, "val", ["x", "y"], few(), digit)
    assert found.wrong_title == "All 2 errors in 3 val images"
    assert [item.name for item in found.wrong] == ["c.jpg", "b.jpg"]
    one = examine(tmp_path, "val", ["x", "y"], few(labels=np.array([0, 0, 0])), digit)
    assert one.wrong_title == "The only error in 3 val images"


def test_images_are_opened_by_their_index_in_the_data_set(tmp_path):
    opened = []

    def open_image(index):
        opened.append(index)
        return Image.new("RGB", (4, 4))

    examine(tmp_path, "test", ["x", "y"], few(indices=np.array([10, 20, 30])), open_image)
    assert opened == [30, 20]


def test_photographs_are_kept_small(tmp_path):
    found = examine(tmp_path, "test", ["x", "y"], few(), lambda i: Image.new("L", (4000, 3000)))
    assert {(item.image.size, item.image.mode) for item in found.wrong} == {((320, 240), "RGB")}


@pytest.mark.parametrize("error", [OSError("gone"), UserError("b.jpg is truncated")])
def test_an_image_that_cannot_be_opened_any_more_does_not_cost_the_report(run_dir, error):
    def open_image(index):
        raise error

    assert write(run_dir, few(), open_image, classes=["x", "y"])
    assert "cannot be opened" in (run_dir / "report.html").read_text()


def test_an_empty_set_is_a_users_error(run_dir, digit):
    nothing = Predictions(
        **{f.name: np.zeros((0, 2)) for f in dataclasses.fields(Predictions) if f.name != "names"},
        names=[],
    )
    with pytest.raises(UserError, match="the test set has no images"):
        write(run_dir, nothing, digit)


def test_predictions_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="'names': 2"):
        few(names=["a", "b"])


def test_findings_agree_with_sklearn(tmp_path, answer, digit):
    given = answer(strength=2.0)
    found = examine(tmp_path, "test", CLASSES, given.predictions, digit)
    said = given.probabilities.argmax(1)
    assert found.num_hits == (said == given.predictions.labels).sum()
    assert found.scores is not None
    expected = f1_score(given.predictions.labels, said, average=None)
    np.testing.assert_allclose(found.scores.f1, expected)


def test_multilabel_findings_agree_with_sklearn(tmp_path, answer, digit):
    given = answer(multilabel=True, strength=2.0)
    labels = given.predictions.labels
    found = examine(tmp_path, "test", CLASSES, given.predictions, digit)
    expected = average_precision_score(labels, given.probabilities, average="macro")
    assert found.mean_average_precision == pytest.approx(expected)
    assert found.scores is not None
    np.testing.assert_allclose(
        found.scores.f1, f1_score(labels, given.probabilities >= 0.5, average=None)
    )
    assert found.calibration is not None and found.calibration.count.sum() == labels.size


def test_multilabel_with_only_the_top_classes_reports_their_recall(tmp_path, answer, digit):
    given = answer(multilabel=True, top=3)
    found = examine(tmp_path, "test", CLASSES, given.predictions, digit)
    assert found.scores is None and found.mean_average_precision is None
    assert found.class_bars is not None
    share, label = found.class_bars
    labels = given.predictions.labels
    ranks = (-given.probabilities).argsort(1).argsort(1)
    np.testing.assert_allclose(share, ((ranks < 3) & (labels > 0)).sum(0) / labels.sum(0))
    assert label == "recall among the 3 most probable"


def test_multilabel_without_any_label_is_reported(tmp_path, answer, digit):
    predictions = dataclasses.replace(
        answer(multilabel=True).predictions, labels=np.zeros((120, 10), dtype=int)
    )
    assert write(tmp_path, predictions, digit)


def test_a_hundred_classes_with_long_names_are_reported(tmp_path, answer, digit):
    classes = [f"a rather long class name, number {i}" for i in range(100)]
    predictions = answer(num_classes=100, strength=1.0).predictions
    assert write(tmp_path, predictions, digit, classes=classes)


def test_thousands_of_classes_are_scored_without_a_confusion_matrix(tmp_path, digit):
    predictions = few(labels=np.array([0, 2500, 1]))
    found = examine(tmp_path, "test", [str(i) for i in range(3000)], predictions, digit)
    assert found.matrix is None and not found.multilabel
    assert found.scores is not None and found.scores.count[[0, 1, 2500]].tolist() == [1, 1, 1]
    files = write(tmp_path, predictions, digit, classes=[str(i) for i in range(3000)])
    assert "confusion.png" not in {f.name for f in files}
    assert "Test accuracy" in (tmp_path / "report.html").read_text()


def test_the_summary_is_left_as_it_was(run_dir, digit):
    before = (run_dir / "summary.json").read_text()
    write(run_dir, few(), digit, classes=["x", "y"])
    assert (run_dir / "summary.json").read_text() == before


FORMULAS = ["=1+1.png", "+1.png", "-1.png", "@sum.png", "\t=1.png", "\r=1.png"]


def test_names_in_predictions_csv_are_unchanged(tmp_path):
    names = ["=1+1.png", "-2.png", "c.jpg"]
    write_csv(tmp_path / "p.csv", ["=HYPERLINK()", "-5"], few(names=names))
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == names
    assert {row["predicted"] for row in rows} == {"=HYPERLINK()", "-5"}


def test_a_spreadsheet_runs_no_name_as_a_formula(tmp_path):
    for i in range(0, len(FORMULAS), 3):
        classes = ["=HYPERLINK()", "-5"]
        write_csv(tmp_path / "p.csv", classes, few(names=FORMULAS[i : i + 3]), spreadsheet=True)
        with (tmp_path / "p.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["image"] for row in rows] == [f"'{name}" for name in FORMULAS[i : i + 3]]
        assert not [cell for row in rows for cell in row.values() if cell[0] in "=+-@\t\r\n"]
        assert {row["label"] for row in rows} == {"'=HYPERLINK()", "'-5"}
        assert float(rows[0]["probability"]) == pytest.approx(0.9)  # numbers stay numbers


def test_a_failed_write_keeps_the_predictions_of_before(tmp_path):
    write_csv(tmp_path / "p.csv", ["a", "b"], few())
    before = (tmp_path / "p.csv").read_bytes()
    with pytest.raises(IndexError):
        write_csv(tmp_path / "p.csv", ["a"], few())
    assert (tmp_path / "p.csv").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["p.csv"]
