import json
import re
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import precision_recall_fscore_support

from vit.reports.report import render
from vit.reports.results import examine

VOID = {"meta", "img", "source", "br", "wbr"}
CLASSES = tuple(f"class {i}" for i in range(10))


class Page(HTMLParser):
    """The elements, attributes and texts of a page; fails where a tag is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.texts, self.cells = [], [], [], []
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


@pytest.fixture(scope="module")
def report(shared_run_dir, answer, digit):
    """A page, parsed and as HTML, and its predictions; drawn once per kind."""

    @cache
    def build(classes=CLASSES, split="test", **kwargs):
        given = answer(num_classes=len(classes), **kwargs)
        html = render(examine(shared_run_dir, split, classes, given.predictions, digit))
        return Page(html), html, given

    return build


def test_the_page_asks_for_nothing_from_outside(report):
    page, html, _ = report(strength=1.0)
    links = [v for k, v in page.attributes if k in ("src", "srcset", "href", "action", "data")]
    assert len(links) > 20
    assert all(link.startswith("data:image/") for link in links)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert "http://" not in html and "https://" not in html and "url(" not in html


def test_the_page_fits_a_phone_and_follows_the_dark_setting(report):
    page, html, _ = report(strength=1.0)
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    assert re.search(r"img \{ max-width:100%", html)
    assert re.search(r"\.scroll \{ overflow-x:auto", html)
    assert html.count('<div class="scroll"><table') == html.count("<table")
    assert "@media (prefers-color-scheme:dark)" in html
    assert ("media", "(prefers-color-scheme: dark)") in page.attributes


def test_the_headline_is_the_accuracy_with_its_wilson_interval(report):
    page, _, given = report(strength=1.0)
    right = int((given.probabilities.argmax(1) == given.predictions.labels).sum())
    interval = binomtest(right, 120).proportion_ci(0.95, method="wilson")
    assert f"Test accuracy {100 * right / 120:.1f} %" in page.text
    assert (
        f"95 % confidence interval {100 * interval.low:.1f} % to {100 * interval.high:.1f} % "
        f"(Wilson), n = 120; {120 - right} wrong." in page.text
    )


def test_the_headline_names_the_split(report):
    page, _, _ = report(split="val")
    assert "Validation accuracy" in page.text and "120 val images" in page.text


def test_metrics_are_a_row_each_and_a_column_a_split(report):
    page, _, _ = report(strength=1.0)
    assert page.row("") == ["", "Validation", "Test"]
    assert page.row("Accuracy") == ["Accuracy", "95.1 %", "94.0 %"]
    assert page.row("Expected calibration error") == ["Expected calibration error", "", "2.1 %"]
    assert page.row("Loss") == ["Loss", "0.3123", ""]


def test_unknown_metrics_keep_their_names_and_follow_the_known(run_dir, answer, digit):
    metrics = {"test/zeal": 12345.678, "test/ece": float("nan"), "test/acc1": 0.5, "speed": 3}
    (run_dir / "summary.json").write_text(json.dumps({"metrics": metrics}))
    predictions = answer(num_classes=2).predictions
    page = Page(render(examine(run_dir, "test", ["x", "y"], predictions, digit)))
    start = page.cells.index(["", "Test", ""])
    assert page.cells[start + 1 : start + 4] == [
        ["Accuracy", "50.0 %", ""], ["speed", "", "3"], ["zeal", "1.235e+04", ""]
    ]  # fmt: skip


def test_the_class_table_is_sklearns(report):
    page, _, given = report(strength=1.0)
    said = given.probabilities.argmax(1)
    scores = precision_recall_fscore_support(given.predictions.labels, said)
    for k, values in enumerate(zip(*scores, strict=True)):
        shares = [f"{100 * value:.1f} %" for value in values[:3]]
        assert page.row(f"class {k}") == [f"class {k}", *shares, str(values[3])]


def test_many_classes_show_the_weakest_and_fold_the_rest(report):
    classes = tuple(f"class {i}" for i in range(30))
    page, html, given = report(classes, strength=1.0, num_images=600)
    said = given.probabilities.argmax(1)
    f1 = precision_recall_fscore_support(given.predictions.labels, said)[2]
    listed = [row[0] for row in page.cells if re.match(r"class \d", row[0]) and len(row) == 5]
    assert listed[:10] == [f"class {k}" for k in np.argsort(f1, kind="stable")[:10]]
    assert listed[10:] == list(classes)
    assert "<summary>All 30 classes</summary>" in html


def test_the_most_confused_pairs_are_listed(report):
    page, _, given = report(strength=1.0)
    labels, said = given.predictions.labels, given.probabilities.argmax(1)
    pairs = [row for row in page.cells if len(row) == 4 and row[0].startswith("class ")]
    counts = [int(row[2]) for row in pairs]
    assert len(pairs) == 10 and counts == sorted(counts, reverse=True)
    true, predicted = (int(name.split()[1]) for name in pairs[0][:2])
    assert counts[0] == ((labels == true) & (said == predicted)).sum()
    assert pairs[0][3] == f"{100 * counts[0] / (labels == true).sum():.1f} %"


def test_names_from_the_user_are_text_never_markup(run_dir, answer, digit):
    classes = ["<b>&", '"quoted"', "</td><script>alert(1)</script>"]
    predictions = answer(num_classes=3, strength=0.5).predictions
    predictions.names[:] = [f'<img src=x onerror="a()">{i}.jpg' for i in range(120)]
    page = Page(render(examine(run_dir, "test", classes, predictions, digit)))
    assert "script" not in page.tags and ("src", "x") not in page.attributes
    assert all(name in {row[0] for row in page.cells} for name in classes)
    assert any(text.startswith("<img src=x onerror=") for text in page.texts)
    assert "name: vit_ti16 # <b>&" in page.text


def test_worst_images_come_with_prediction_probability_truth_and_file(report):
    page, html, given = report(strength=1.0)
    assert html.count("<figure>") == 20
    wrong = given.probabilities.argmax(1) != given.predictions.labels
    top = np.where(wrong, given.probabilities.max(1), 0).argmax()
    assert given.predictions.names[top].split("/")[1] in page.texts
    assert f"{100 * given.probabilities[top].max():.1f} %" in page.text
    assert f"true: class {given.predictions.labels[top]}" in page.texts


def test_no_errors_are_reported_without_empty_tables(report):
    page, html, _ = report(strength=60.0)
    assert "No errors in 120 test images." in page.text
    assert "Most confused" not in page.text and "<figure>" not in html
    assert "Test accuracy 100.0 %" in page.text


def test_the_page_has_commands_for_the_model_and_its_origin(report):
    page, _, _ = report(strength=1.0)
    for part in ("vit classify", "vit.load(", "vit test", "vit fit -c quickstart"):
        assert part in page.text
    assert page.row("training time") == ["training time", "1 min 23 s"]
    assert page.row("parameters")[1] == "2,687,818"
    assert page.row("torch")[1] == "2.15.0"
    assert page.row("cpu")[1] == "A CPU"
    assert page.row("train")[1] == "1,437"


def test_absent_facts_are_left_out_and_long_lists_folded(report):
    page, html, _ = report(strength=1.0)
    assert "None" not in page.text and "recipe" not in page.text and "gpus" not in page.text
    assert "<summary>Model</summary>" in html and "<summary>config.yaml</summary>" in html


def test_a_page_without_any_files_of_the_run_is_complete(tmp_path, answer, digit):
    page = Page(render(examine(tmp_path, "test", CLASSES, answer().predictions, digit)))
    assert "Test accuracy" in page.text
    for absent in ("None", "nan", "Metrics", "Training", "How it was made"):
        assert absent not in page.text


def test_multilabel_leads_with_mean_average_precision(report):
    page, html, _ = report(multilabel=True)
    assert "Test mean average precision" in page.text
    assert "Confusion" not in page.text
    assert 'alt="average precision"' in html
    assert "A prediction is one class of one image." in page.text


def test_multilabel_with_top_classes_only_leads_with_a_proportion(report):
    page, html, _ = report(multilabel=True, top=3)
    assert "Test images whose most probable class is right" in page.text
    assert "(Wilson)" in page.text and "Calibration" not in page.text
    assert 'alt="recall among the 3 most probable"' in html


def test_a_name_without_a_font_is_explained(report):
    page, _, _ = report(("cat", "\ue000dog"), strength=1.0)
    assert "No font could draw these names: #1 \ue000dog." in page.text


def test_the_groups_of_the_reliability_diagram_are_a_table(report):
    page, html, given = report(strength=1.0)
    assert "<summary>The groups</summary>" in html
    start = page.cells.index(["confidence", "predictions", "mean", "right"])
    rows = []
    for row in page.cells[start + 1 :]:
        if len(row) != 4 or " to " not in row[0]:
            break
        rows.append(row)
    confidence, right = given.probabilities.max(1), given.predictions.hits()
    expected = []
    for i in range(15):
        chosen = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if chosen.any():
            expected.append(
                [
                    f"{100 * i / 15:.0f} to {100 * (i + 1) / 15:.0f} %",
                    str(chosen.sum()),
                    f"{100 * confidence[chosen].mean():.1f} %",
                    f"{100 * right[chosen].mean():.1f} %",
                ]
            )
    assert rows == expected
