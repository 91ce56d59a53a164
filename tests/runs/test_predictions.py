import csv

import numpy as np
import pytest

from vit.runs.predictions import write_csv

CLASSES = [f"class {i}" for i in range(10)]


def rows_of(file, *arguments, **options):
    write_csv(file, *arguments, **options)
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_predictions_csv_has_one_row_an_image_with_its_most_probable_classes(tmp_path, few, answer):
    rows = rows_of(tmp_path / "p.csv", ["cat", "dog"], few())
    assert rows[0] == {
        "index": "0", "image": "a.jpg", "label": "cat", "label_probability": "0.9",
        "predicted": "cat", "probability": "0.9", "correct": "1",
        "predicted_2": "dog", "probability_2": "0.1",
    }  # fmt: skip
    assert [row["correct"] for row in rows] == ["1", "0", "0"]
    predictions, _ = answer()
    rows = rows_of(tmp_path / "p.csv", CLASSES, predictions)
    assert len(rows) == len(predictions) and list(rows[0])[-1] == "probability_5"
    assert rows[0]["predicted_5"] == CLASSES[predictions.top_classes[0, 4]]


def test_predictions_csv_separates_several_labels_and_keeps_odd_names(tmp_path, few):
    predictions = few(
        labels=np.array([[1, 1], [0, 0], [0, 1]]), names=["a,\n.jpg", "猫.jpg", "bad\udcff.jpg"]
    )
    classes, thresholds = ["x", 'say "y"'], np.array([0.1, 0.2])
    rows = rows_of(tmp_path / "p.csv", classes, predictions, thresholds=thresholds)
    assert [row["label"] for row in rows] == ['x|say "y"', "", 'say "y"']
    assert [row["predicted_labels"] for row in rows] == ["x", 'x|say "y"', 'x|say "y"']
    assert [row["image"] for row in rows] == ["a,\n.jpg", "猫.jpg", "bad\\udcff.jpg"]
    assert [row["correct"] for row in rows] == ["1", "0", "1"]


FORMULAS = ["=1+1.png", "+1.png", "-1.png", "@sum.png", "\t=1.png", "\r=1.png"]


@pytest.mark.parametrize("names", [FORMULAS[:3], FORMULAS[3:]])
def test_a_spreadsheet_runs_no_name_as_a_formula_and_programs_get_it_unchanged(
    tmp_path, names, few
):
    arguments = tmp_path / "p.csv", ["=HYPERLINK()", "-5"], few(names=names)
    rows = rows_of(*arguments)
    assert [row["image"] for row in rows] == names
    assert {row["predicted"] for row in rows} == {"=HYPERLINK()", "-5"}
    rows = rows_of(*arguments, spreadsheet=True)
    assert [row["image"] for row in rows] == [f"'{name}" for name in names]
    assert not [cell for row in rows for cell in row.values() if cell[0] in "=+-@\t\r\n"]
    assert {row["label"] for row in rows} == {"'=HYPERLINK()", "'-5"}
    assert float(rows[0]["probability"]) == pytest.approx(0.9)  # numbers stay numbers


def test_a_failed_write_keeps_the_predictions_of_before(tmp_path, few):
    write_csv(tmp_path / "p.csv", ["a", "b"], few())
    before = (tmp_path / "p.csv").read_bytes()
    with pytest.raises(IndexError):
        write_csv(tmp_path / "p.csv", ["a"], few())
    assert (tmp_path / "p.csv").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["p.csv"]
