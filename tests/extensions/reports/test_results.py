"""The files of a scored run, and its page, whose figures are compared with other packages."""

import csv
import re
import warnings
from base64 import b64decode
from functools import cache
from html import unescape
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from vit.errors import UserError
from vit.extensions.reports.pictures import MOST_EXAMPLES, MOST_PICTURES, right_examples
from vit.extensions.reports.results import write_results
from vit.runs.predictions import write_csv

pytestmark = pytest.mark.usefixtures("unpainted")
SAVEFIG = Figure.savefig
VOID = {"meta", "img", "wbr", "br"}
CLASSES = tuple(f"class {i}" for i in range(10))


class Page(HTMLParser):
    """The elements, attributes and texts of a page, and the cells of its tables but for the matrix;
    fails where a tag is not closed in order."""

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
        if tag == "table":
            self._listed = ("class", "matrix") not in attrs
        if tag == "tr":
            self.cells += [[] for _ in range(self._listed)]
        if tag in ("td", "th") and self._listed:
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.texts.append(data)
        if self._open and self._open[-1] in ("td", "th") and self._listed:
            self.cells[-1][-1] += data.replace("\N{NO-BREAK SPACE}", " ")

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\N{NO-BREAK SPACE}", " ").split())

    def row(self, first: str) -> list[str]:
        return next(row for row in self.cells if row[0] == first)


def opened_by(page: Page) -> dict[str, tuple[list[str], list[str]]]:
    """Names and pictures of the images that each number of the confusion opens."""
    cells = {}
    for part in page.html.split('<div popover id="')[1:]:
        parts = re.findall(r'<(div|ul) class="\w+ images">(.*?)</\1>', part, flags=re.DOTALL)
        text = "".join(content for _, content in parts)
        names = re.findall(r"<(?:figcaption.*?|li)>(.*?)</(?:figcaption|li)>", text)
        names = [unescape(name.replace("<wbr>", "")) for name in names]
        cells[part.partition('"')[0]] = names, re.findall(r'href="#(row-\d+)"', text)
    return cells


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


@pytest.mark.parametrize(("multilabel", "pictures"), [(False, {"confusion.png"}), (True, set())])
def test_a_run_gets_its_pictures_predictions_and_report(
    new_run, answer, digit, multilabel, pictures, monkeypatch
):
    monkeypatch.setattr(Figure, "savefig", SAVEFIG)
    run_dir = new_run()
    before = {file.name: file.read_bytes() for file in run_dir.iterdir()}
    write(run_dir, answer(multilabel=multilabel)[0], digit)
    after = {file.name: file for file in run_dir.iterdir()}
    pictures |= {"worst.png", "curves.png"}
    assert after.keys() - before.keys() == pictures | {"report.html"}
    assert all(after[name].read_bytes() == content for name, content in before.items())
    for name in pictures:
        Image.open(run_dir / name).verify()


def test_the_page_asks_for_nothing_from_outside(report):
    page, *_ = report(strength=1.0)
    links = [v for k, v in page.attributes if k in ("src", "srcset", "href", "action", "data")]
    assert len(links) > 20
    assert all(link.startswith(("data:image/", "#")) for link in links)
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
    titles = {value for key, value in page.attributes if key == "title"}
    assert {f"{one}, named rightly" for one in classes} <= titles
    assert {f"{classes[2]} taken for {other}" for other in classes[:2]} <= titles
    assert any(text.startswith("<img src=x onerror=") for text in page.texts)
    assert "name: vit_ti16 # <b>&" in page.text


def test_the_headline_is_the_accuracy_with_its_wilson_interval(report):
    page, predictions, probabilities = report(strength=1.0)
    right = int((probabilities.argmax(1) == predictions.labels).sum())
    low, high = binomtest(right, 120).proportion_ci(0.95, method="wilson")
    assert f"Test accuracy {100 * right / 120:.1f} %" in page.text
    assert f"interval {100 * low:.1f} % to {100 * high:.1f} % (Wilson)" in page.text
    assert f"{right} right, {120 - right} wrong" in page.text


def test_each_number_stands_once(report, new_run, few, digit):
    page, predictions, probabilities = report(strength=1.0)
    right = int((probabilities.argmax(1) == predictions.labels).sum())
    low, high = binomtest(right, 120).proportion_ci(0.95, method="wilson")
    shares = [f"{100 * share:.1f} %" for share in (right / 120, low, high, 0.9512, 0.0215)]
    for number in [*shares, "0.3123", "2,687,818", "1,437", "181", "122", "1 min 23 s"]:
        assert len(re.findall(rf"(?<![\d.,]){re.escape(number)}", page.text)) == 1, number
    assert page.text.count("5e" * 16) == 1
    folded = re.findall(r"<details>.*?</details>", page.html, flags=re.DOTALL)
    assert any("5e" * 16 in part for part in folded)
    equal = {"val/acc1": 1 / 3, "val/loss": 0.71234, "val/nll": 0.71234}
    page = write(new_run(metrics=equal), few(), digit, ["x", "y"], split="val")
    assert page.text.count("0.7123") == 1 and page.text.count("33.3 %") == 1


def test_the_class_table_is_sklearns(report):
    page, predictions, probabilities = report(strength=1.0)
    scores = precision_recall_fscore_support(predictions.labels, probabilities.argmax(1))
    for k, values in enumerate(zip(*scores, strict=True)):
        shares = [f"{100 * value:.1f} %" for value in values[:3]]
        assert page.row(f"class {k}") == [f"class {k}", *shares, str(values[3])]


def test_many_classes_show_the_weakest_and_fold_the_rest(report):
    classes = (*(f"class {i}" for i in range(29)), "class 29 \ue000")
    page, predictions, probabilities = report(classes, strength=1.0, num_images=600)
    f1 = precision_recall_fscore_support(predictions.labels, probabilities.argmax(1))[2]
    listed = [row[0] for row in page.cells if re.match(r"class \d", row[0]) and len(row) == 5]
    assert listed == [classes[k] for k in np.argsort(f1, kind="stable")]
    folded = page.html.split("<summary>The other classes</summary>")[1].split("</details>")[0]
    assert folded.count("<tr>") == 1 + 20


def test_the_most_confident_errors_come_with_their_probability_truth_and_file(report):
    page, predictions, probabilities = report(strength=1.0)
    assert page.html.count('class="said"') == 20
    wrong = probabilities.argmax(1) != predictions.labels
    top = np.where(wrong, probabilities.max(1), 0).argmax()
    assert predictions.names[top].split("/")[1] in page.texts
    assert f"{100 * probabilities[top].max():.1f} %" in page.text
    assert f"true: class {predictions.labels[top]}" in page.texts
    page, *_ = report(strength=60.0)
    assert "No errors." in page.text and "Test accuracy 100.0 %" in page.text
    assert "Most frequent errors" not in page.text and 'class="said"' not in page.html


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
    assert opened == [30, 20, 10] and looks == [("RGB", 1), ("RGB", 0)]  # the right one last
    pairs = page.html.split('<div class="pair">')[1:]
    assert [pair.split("<figcaption>")[0].count("<img") for pair in pairs] == [1, 0]
    assert "what the model looked at (rollout)" in page.text
    assert "Validation accuracy" in page.text and "1 right, 2 wrong" in page.text
    assert len(page.html) < 1_000_000  # photographs are kept small


def test_unknown_metrics_are_listed_and_images_that_cannot_be_opened_cost_no_report(new_run, few):
    def open_image(index):
        raise UserError("truncated") if index == 1 else OSError("gone")

    run = new_run(metrics={"test/zeal": 12345.678, "test/acc1": 0.5})
    page = write(run, few(), open_image, ["x", "y"])
    assert page.text.count("cannot be opened") == 2 and "looked at" not in page.text
    assert page.row("zeal") == ["zeal", "1.235e+04"]
    assert opened_by(page)["cell-1-0"] == (["b.jpg"], [])


def test_multilabel_leads_with_the_mean_of_sklearns_average_precision(report):
    page, predictions, probabilities = report(multilabel=True, strength=2.0)
    areas = average_precision_score(predictions.labels, probabilities, average=None)
    assert f"Test mean average precision {100 * np.mean(areas):.1f} %" in page.text
    scores = precision_recall_fscore_support(predictions.labels, probabilities > 0.5)
    for k, (area, *values, count) in enumerate(zip(areas, *scores, strict=True)):
        shares = [f"{100 * value:.1f} %" for value in values]
        row = [f"class {k}", f"{100 * area:.1f} %", "0.500", *shares, str(count)]
        assert page.row(f"class {k}") == row
    assert "Confusion" not in page.text and "<div popover" not in page.html
    assert "A prediction is one class of one image." in page.text


def test_metrics_are_a_row_each_and_a_column_a_split(report):
    page, *_ = report(strength=1.0)
    assert page.row("") == ["", "Validation", "Test"]
    assert "Validation: 95.1 %." in page.text
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
    for name, value in {"training time": "1 min 23 s", "torch": "2.15.0"}.items():
        assert page.row(name)[1] == value
    assert not re.search(r"None|recipe|gpus", page.text)


def test_a_cell_opens_exactly_the_images_that_predictions_csv_has_for_it(new_run, answer, tmp_path):
    predictions, _ = answer(num_classes=4, strength=0.5)
    names = ["a cat", "<b>&", "c/d", "d_e"]
    page = write(new_run(), predictions, lambda i: Image.new("RGB", (40, 30), (i,) * 3), names)
    write_csv(tmp_path / "predictions.csv", names, predictions)
    expected = {}
    with (tmp_path / "predictions.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["correct"] == "0":
                pair = names.index(row["label"]), names.index(row["predicted"])
                expected.setdefault("cell-{}-{}".format(*pair), []).append(row)
    assert len(expected) > 8
    cells, sources = opened_by(page), dict(re.findall(r'id="(row-\d+)".*?href="(.*?)"', page.html))
    for cell, rows in expected.items():
        rows.sort(key=lambda row: -float(row["probability"]))
        names_shown, pictures = cells[cell]
        assert names_shown == [row["image"] for row in rows]
        greys = [decoded(sources[picture]).getpixel((5, 5))[0] for picture in pictures]
        assert greys == pytest.approx([int(row["index"]) for row in rows], abs=1)
    buttons = re.findall(r'<button popovertarget="(cell-\d-\d)" title=.*?>(\d+)<', page.html)
    shown = {cell: int(count) for cell, count in buttons if cell in expected}
    assert shown == {cell: len(rows) for cell, rows in expected.items()}
    assert {cell for cell, _ in buttons} == cells.keys()  # no number opens nothing


def decoded(address: str) -> Image.Image:
    return Image.open(BytesIO(b64decode(address.partition(",")[2])))


def test_the_page_is_bounded_in_size_however_many_errors_there_are(new_run, answer):
    noise = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((640, 480))
    opened = []
    predictions, _ = answer(num_classes=12, strength=0.1, num_images=3000)
    page = write(
        new_run(),
        predictions,
        lambda i: opened.append(i) or photo,
        [f"class {i}" for i in range(12)],
    )
    assert len(opened) == len(set(opened)) <= 20 + MOST_PICTURES + MOST_EXAMPLES
    assert page.html.count("<symbol") == len(opened) and len(page.html) < 2_000_000
    cells = {cell: parts for cell, parts in opened_by(page).items() if parts[0]}
    assert len(cells) == 12 * 12 and all(len(names) <= 60 for names, _ in cells.values())
    pictures = [len(pictures) for _, pictures in cells.values()]
    assert sum(count > 0 for count in pictures) >= MOST_PICTURES


@pytest.mark.parametrize("multilabel", [False, True])
def test_right_examples_are_the_surest_right_answers(answer, multilabel):
    predictions, probabilities = answer(multilabel=multilabel, strength=1.0)
    examples = right_examples(predictions, [1, 3, 7], None)
    for k in (1, 3, 7):
        if multilabel:
            right = (predictions.labels[:, k] > 0) & (probabilities[:, k] > 0.5)
        else:
            right = (predictions.labels == k) & (probabilities.argmax(1) == k)
        rows = sorted(np.flatnonzero(right), key=lambda row: -probabilities[row, k])[:3]
        assert examples[k] == rows


def test_the_contents_name_every_section(report):
    page, *_ = report(strength=1.0)
    links = re.findall(r'<a href="#(.*?)">', page.html)
    sections = re.findall(r'<section id="(\w+)">', page.html)
    assert links == ["top", *sections] and len(sections) >= 6


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_a_contrast_of_four_and_a_half(report, dark):
    page, *_ = report(strength=1.0)
    before, after = page.html.split("@media screen and (prefers-color-scheme:dark)")
    values = dict(re.findall(r"--([\w-]+):([^;}]+)", before))
    if dark:
        values |= dict(re.findall(r"--([\w-]+):(#\w+)", after.split("} }")[0]))
    texts = [(text, "paper") for text in ("ink", "muted", "accent", "wrong")]
    texts += [(text, "soft") for text in ("ink", "muted")] + [("ink", "bar")]
    for part in ("right", "wrong"):
        texts += [("ink", f"{part}-{level}") for level in (1, 2, 3)] + [("paper", f"{part}-4")]
    assert (values["pale"], values["full"]) == ("var(--ink)", "var(--paper)")
    for text, ground in texts:
        low, high = sorted(luminance(values[name]) + 0.05 for name in (text, ground))
        assert high / low >= 4.5, (text, ground, high / low)
