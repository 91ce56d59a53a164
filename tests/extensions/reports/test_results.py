"""The files of a scored run, and its page, whose figures are compared with other packages."""

import re
import warnings
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from vit.errors import UserError
from vit.extensions.reports.results import write_results

pytestmark = pytest.mark.usefixtures("unpainted")
SAVEFIG = Figure.savefig
VOID = {"meta", "img", "source", "wbr"}
CLASSES = tuple(f"class {i}" for i in range(10))


class Page(HTMLParser):
    """The elements, attributes and texts of a page; fails where a tag is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tags, self.attributes, self.texts, self.cells = html, [], [], [], []
        self._open = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.texts.append(data)
        if self._open and self._open[-1] in ("td", "th"):
            self.cells[-1][-1] += data.replace("\N{NO-BREAK SPACE}", " ")

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\N{NO-BREAK SPACE}", " ").split())

    def row(self, first: str) -> list[str]:
        return next(row for row in self.cells if row[0] == first)


def write(run_dir, predictions, open_image, classes=CLASSES, split="test", **options) -> Page:
    """The page of write_results, with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arguments = {"split": split, "classes": classes, "predictions": predictions}
        write_results(run_dir, **arguments, open_image=open_image, **options)
    return Page((run_dir / "report.html").read_text())


@pytest.fixture(scope="module")
def report(new_run, answer, digit):
    """A page, its predictions and probabilities; drawn once per kind."""

    @cache
    def build(classes=CLASSES, **kwargs):
        predictions, probabilities = answer(num_classes=len(classes), **kwargs)
        return write(new_run(), predictions, digit, classes), predictions, probabilities

    return build


@pytest.mark.parametrize(
    ("multilabel", "picture"), [(False, "confusion.png"), (True, "per_class.png")]
)
def test_a_run_gets_its_pictures_predictions_and_report(
    new_run, answer, digit, multilabel, picture, monkeypatch
):
    monkeypatch.setattr(Figure, "savefig", SAVEFIG)
    run_dir = new_run()
    before = {file.name: file.read_bytes() for file in run_dir.iterdir()}
    write(run_dir, answer(multilabel=multilabel)[0], digit)
    after = {file.name: file for file in run_dir.iterdir()}
    assert after.keys() - before.keys() == {
        "worst.png", "curves.png", picture, "report.html"
    }  # fmt: skip
    assert all(after[name].read_bytes() == content for name, content in before.items())
    for name in ("worst.png", "curves.png", picture):
        Image.open(run_dir / name).verify()


def test_the_page_asks_for_nothing_from_outside(report):
    page, *_ = report(strength=1.0)
    links = [v for k, v in page.attributes if k in ("src", "srcset", "href", "action", "data")]
    assert len(links) > 20
    assert all(link.startswith("data:image/") for link in links)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?://|url\(", page.html)
    policy = next(v for k, v in page.attributes if k == "content" and "-src" in v)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_names_from_the_user_are_text_never_markup(new_run, answer, digit):
    classes = ["<b>&", '"quoted"', "</td><script>alert(1)</script>"]
    predictions, _ = answer(num_classes=3, strength=0.5)
    predictions.names[:] = [f'<img src=x onerror="a()">{i}_\udcff.jpg' for i in range(120)]
    page = write(new_run(), predictions, digit, classes)
    assert "script" not in page.tags and ("src", "x") not in page.attributes
    assert all(name in {row[0] for row in page.cells} for name in classes)
    assert any(text.startswith("<img src=x onerror=") for text in page.texts)
    assert "name: vit_ti16 # <b>&" in page.text


def test_the_headline_is_the_accuracy_with_its_wilson_interval(report):
    page, predictions, probabilities = report(strength=1.0)
    right = int((probabilities.argmax(1) == predictions.labels).sum())
    low, high = binomtest(right, 120).proportion_ci(0.95, method="wilson")
    assert f"Test accuracy {100 * right / 120:.1f} %" in page.text
    assert f"interval {100 * low:.1f} % to {100 * high:.1f} % (Wilson), n = 120" in page.text


def test_the_class_table_is_sklearns(report):
    page, predictions, probabilities = report(strength=1.0)
    scores = precision_recall_fscore_support(predictions.labels, probabilities.argmax(1))
    for k, values in enumerate(zip(*scores, strict=True)):
        shares = [f"{100 * value:.1f} %" for value in values[:3]]
        assert page.row(f"class {k}") == [f"class {k}", *shares, str(values[3])]


def test_many_classes_show_the_weakest_and_fold_the_rest(report):
    classes = (*(f"class {i}" for i in range(29)), "class 29 \ue000")
    page, predictions, probabilities = report(classes, strength=1.0, num_images=600)
    assert "No font could draw these names: #29 class 29 \ue000." in page.text
    f1 = precision_recall_fscore_support(predictions.labels, probabilities.argmax(1))[2]
    listed = [row[0] for row in page.cells if re.match(r"class \d", row[0]) and len(row) == 5]
    assert listed[:10] == [classes[k] for k in np.argsort(f1, kind="stable")[:10]]
    assert listed[10:] == list(classes)
    assert "<summary>All 30 classes</summary>" in page.html


def test_the_most_confident_errors_come_with_their_probability_truth_and_file(report):
    page, predictions, probabilities = report(strength=1.0)
    assert page.html.count("<figure>") == 20
    wrong = probabilities.argmax(1) != predictions.labels
    top = np.where(wrong, probabilities.max(1), 0).argmax()
    assert predictions.names[top].split("/")[1] in page.texts
    assert f"{100 * probabilities[top].max():.1f} %" in page.text
    assert f"true: class {predictions.labels[top]}" in page.texts
    page, *_ = report(strength=60.0)
    assert "No errors in 120 test images." in page.text and "Test accuracy 100.0 %" in page.text
    assert "Most confused" not in page.text and "<figure>" not in page.html


def test_few_errors_are_all_shown_and_opened_by_their_index(new_run, few):
    opened = []

    def open_image(index):
        opened.append(index)
        return Image.new("L", (4000, 3000))

    looks = []

    def look(image, label):
        looks.append((image.mode, label))
        return Image.new("RGB", (9, 9)) if label else None

    predictions = few(indices=np.array([10, 20, 30]))
    options = {"split": "val", "look": ("rollout", look)}
    page = write(new_run(), predictions, open_image, ["x", "y"], **options)
    assert opened == [30, 20] and looks == [("RGB", 1), ("RGB", 0)]
    figures = page.html.split("<figure>")[1:]
    assert [figure.count("<img") for figure in figures] == [2, 1]
    assert "what the model looked at (rollout)" in page.text
    assert "Validation accuracy" in page.text and "2 errors in 3 val images" in page.text
    assert len(page.html) < 1_000_000  # photographs are kept small


def test_unknown_metrics_are_listed_and_images_that_cannot_be_opened_cost_no_report(new_run, few):
    def open_image(index):
        raise UserError("truncated") if index == 1 else OSError("gone")

    run = new_run(metrics={"test/zeal": 12345.678, "test/acc1": 0.5})
    page = write(run, few(), open_image, ["x", "y"])
    assert page.text.count("cannot be opened") == 2 and "looked at" not in page.text
    start = page.cells.index(["", "Test"])
    assert page.cells[start + 1 : start + 3] == [["Accuracy", "50.0 %"], ["zeal", "1.235e+04"]]


def test_multilabel_leads_with_the_mean_of_sklearns_average_precision(report):
    page, predictions, probabilities = report(multilabel=True, strength=2.0)
    areas = average_precision_score(predictions.labels, probabilities, average=None)
    assert f"Test mean average precision {100 * np.mean(areas):.1f} %" in page.text
    scores = precision_recall_fscore_support(predictions.labels, probabilities > 0.5)
    for k, (area, *values, count) in enumerate(zip(areas, *scores, strict=True)):
        shares = [f"{100 * value:.1f} %" for value in values]
        row = [f"class {k}", f"{100 * area:.1f} %", "0.500", *shares, str(count)]
        assert page.row(f"class {k}") == row
    assert "Confusion" not in page.text and 'alt="average precision"' in page.html
    assert "A prediction is one class of one image." in page.text


def test_metrics_are_a_row_each_and_a_column_a_split(report):
    page, *_ = report(strength=1.0)
    assert page.row("") == ["", "Validation", "Test"]
    assert page.row("Accuracy") == ["Accuracy", "95.1 %", "94.0 %"]
    assert page.row("Expected calibration error") == ["Expected calibration error", "", "2.1 %"]
    assert page.row("Loss") == ["Loss", "0.3123", ""]


def test_the_page_has_commands_for_the_model_and_its_origin(report):
    page, *_ = report(strength=1.0)
    for part in (
        "vit classify",
        "vit.load(",
        "vit test",
        "The last command",
        "vit fit -c quickstart",
    ):
        assert part in page.text
    for name, value in {"training time": "1 min 23 s", "torch": "2.15.0", "train": "1,437"}.items():
        assert page.row(name)[1] == value
    assert not re.search(r"None|recipe|gpus", page.text)
