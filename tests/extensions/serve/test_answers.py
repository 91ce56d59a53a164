"""Answers of a server: the rows of `vit classify --json`, and what openapi.json says."""

import io
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.command import Vit, coloured, saved, vit  # noqa: F401
from tests.extensions.serve.serving import Answer, Client, served

API: dict[str, Any] = json.loads(files("vit.extensions.serve").joinpath("openapi.json").read_text())


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[Client]:
    with served(place / "model", "--queue", "5", "--max-bytes", "200000") as client:
        yield client


def check(answer: Answer, path: str, method: str = "post") -> Any:
    """The answer's JSON, which openapi.json describes."""
    described = API["paths"][path][method]["responses"][str(answer.status)]
    if "$ref" in described:
        described = API["components"]["responses"][described["$ref"].rsplit("/", 1)[1]]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in described["content"]
    for name, header in described.get("headers", {}).items():
        assert name.lower() in answer.headers or not header["required"]
    if kind == "application/json":
        schema = described["content"][kind]["schema"]
        Draft202012Validator({**schema, "components": API["components"]}).validate(answer.json)
        return answer.json
    return answer.body


def test_openapi_is_valid() -> None:
    validate(API)
    assert set(API["paths"]) == {"/classify", "/explain", "/health", "/metrics"}


def test_the_rows_are_those_of_classify(
    place: Path,
    client: Client,
    vit: Vit,  # noqa: F811
) -> None:
    paths = [place / "photos" / name for name in ("red/03.jpg", "blue/00.jpg", "grün/11.jpg")]
    printed = json.loads(vit("classify", place / "model", *paths, "--json", "--top", 2).out)
    answer = client.form([(path.name, path.read_bytes()) for path in paths], "/classify?top=2")
    rows = check(answer, "/classify")
    assert [{**row, "image": path.name} for row, path in zip(printed, paths, strict=True)] == rows
    for path, row in zip(paths, rows, strict=True):
        alone = check(client.ask("/classify?top=2", path.read_bytes()), "/classify")
        assert alone == [{**row, "image": "picture"}]


@pytest.mark.parametrize("kind", ("several labels", "ONNX"))
def test_other_models_answer_as_classify_does(
    place: Path,
    vit: Vit,  # noqa: F811
    kind: str,
) -> None:
    model: Path = place / "model"
    if kind == "ONNX":
        assert vit("export", model, place / "model.onnx").status == 0
        model = place / "model.onnx"
    else:
        model = saved(place / "several", extra={"multilabel": True, "thresholds": [0.3, 0.5, 0.7]})
    paths = sorted((place / "photos").rglob("*.jpg"))[:6]
    printed = json.loads(vit("classify", model, *paths, "--json").out)
    with served(model) as client:
        rows = [check(client.ask(body=path.read_bytes()), "/classify")[0] for path in paths]
        explain = client.ask("/health").json["explain"]
        assert client.ask("/explain", paths[0].read_bytes()).status == (200 if explain else 404)
    assert [{**row, "image": "picture"} for row in printed] == rows
    assert ("labels" in rows[0]) == (kind != "ONNX") == bool(explain)


@pytest.mark.parametrize("kind", ("PNG", "WEBP", "BMP", "GIF", "TIFF", "JPEG"))
def test_formats_of_photos(place: Path, client: Client, vit: Vit, kind: str) -> None:  # noqa: F811
    image = Image.open(place / "photos" / "red" / "05.jpg")
    image.save(place / f"picture.{kind}", kind)
    content = (place / f"picture.{kind}").read_bytes()
    printed = json.loads(vit("classify", place / "model", place / f"picture.{kind}", "--json").out)
    assert client.ask(body=content).json[0]["top"] == printed[0]["top"]


@pytest.mark.parametrize("kind", ("ICO", "PPM", "PCX", "TGA", "EPS", "JPEG2000", "PDF"))
def test_other_formats_are_refused(client: Client, kind: str) -> None:
    Image.new("RGB", (20, 20), "red").save(file := io.BytesIO(), kind)
    answer = client.ask(body=file.getvalue())
    assert answer.status == 400
    assert "not a file of JPEG, PNG" in check(answer, "/classify")["error"]


def test_files_that_only_look_like_photos(client: Client) -> None:
    comment = b"P6\n#ftyp\n16 16\n255\n" + bytes(768)
    between = b"8BPSWEBPWEBP" + bytes(200)
    Image.new("RGB", (64, 64), "red").save(file := io.BytesIO(), "JPEG", progressive=True)
    content = file.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    scans = content[:-2] + scan * 120 + content[-2:]
    for body, reason in ((comment, "not a file"), (between, "not a file"), (scans, "100 scans")):
        answer = client.ask(body=body)
        assert answer.status == 400 and reason in answer.json["error"]
    assert client.ask(body=content[:-2] + scan * 20 + content[-2:]).status == 200


def test_a_picture_that_is_none(place: Path, client: Client) -> None:
    good = (place / "photos" / "red" / "00.jpg").read_bytes()
    alone = client.ask(body=good[:300])
    assert alone.status == 400 and "cut short" in check(alone, "/classify")["error"]
    empty = client.ask(body=b"")
    assert empty.status == 400 and "empty" in check(empty, "/classify")["error"]
    several = client.form([("ä.jpg", good), ("bad.jpg", good[:300]), ("../x", b"<html>")])
    assert several.status == 200
    rows = check(several, "/classify")
    assert [row["image"] for row in rows] == ["ä.jpg", "bad.jpg", "../x"]
    assert ["error" in row for row in rows] == [False, True, True]
    assert "bad.jpg" not in rows[1]["error"] and "cut short" in rows[1]["error"]


def test_too_much_at_once(place: Path, client: Client) -> None:
    good = (place / "photos" / "red" / "00.jpg").read_bytes()
    many = client.form([("a.jpg", good)] * 6)
    assert many.status == 413 and "queue" in check(many, "/classify")["error"]
    assert client.form([("a.jpg", good)] * 5).status == 200
    assert client.ask(body=good + bytes(200_000)).status == 413
    chunks = client.ask(body=iter([good, bytes(150_000), bytes(150_000)]))
    assert chunks.status == 413
    check(chunks, "/classify")


@pytest.mark.parametrize(
    ("query", "reason"),
    (
        ("top=0", "top=0 must be at least 1"),
        ("top=x", "top='x' is not a number"),
        ("topp=3", "did you mean 'top'"),
        ("top=3&top=4", "'top' is there twice"),
        ("top=1" + "0" * 400, "too large"),
        ("coverage=1.5", "coverage=1.5 must be in (0, 1)"),
        ("unknown=nan", "unknown=nan must be"),
        ("coverage=0.9", "needs held-out images"),
        ("confidence=0.5", "classes are a tree"),
    ),
)
def test_an_option_with_a_mistake(place: Path, client: Client, query: str, reason: str) -> None:
    answer = client.ask(f"/classify?{query}", (place / "photos/red/00.jpg").read_bytes())
    assert answer.status == 400
    assert reason in check(answer, "/classify")["error"]


def test_an_option_in_the_form_is_not_ignored(client: Client) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="top"\r\n\r\n3\r\n--x--\r\n'
    answer = client.ask("/classify", body, content_type="multipart/form-data; boundary=x")
    assert answer.status == 400 and "is a file" in check(answer, "/classify")["error"]
    empty = client.ask("/classify", b"--x--\r\n", content_type="multipart/form-data; boundary=x")
    assert empty.status == 400 and "no picture" in check(empty, "/classify")["error"]


def test_explain_is_a_picture_of_the_models_size(place: Path, client: Client) -> None:
    content = (place / "photos/red/00.jpg").read_bytes()
    before = client.ask(body=content).json
    answer = client.ask("/explain", content)
    image = Image.open(io.BytesIO(check(answer, "/explain")))
    assert (answer.status, image.format, image.size) == (200, "PNG", (16, 16))
    assert client.ask(body=content).json == before
    assert client.ask("/explain", b"no picture").status == 400
    assert client.form([("a", content), ("b", content)], "/explain").status == 400


def test_health_and_unknown_addresses(client: Client) -> None:
    health = check(client.ask("/health"), "/health", "get")
    assert health["classes"] == 3 and health["explain"] == "attention rollout"
    assert health["options"] == {} and health["token"] is False
    assert client.ask("/etc/passwd").json == {"error": "Not Found"}
    assert client.ask("/page/../../../pyproject.toml").status == 404
    assert client.ask("/classify").status == 405
    assert json.loads(client.ask("/openapi.json").body) == API


def test_metrics_count_what_was_answered(place: Path) -> None:
    folder = saved(place / "odd", ['a"b', "c\\d", "e\nf"])
    content = (place / "photos/red/00.jpg").read_bytes()
    with served(folder) as client:
        names = [client.ask(body=content).json[0]["top"][0]["class"] for _ in range(3)]
        client.ask(body=b"x")
        client.ask("/nowhere/1")
        client.ask("/nowhere/2")
        client.ask("/classify/")
        client.ask("/nowhere/3", bytes(2**25 + 1))
        answer = client.ask("/metrics")
    text = check(answer, "/metrics", "get").decode()
    samples = {
        (s.name, *sorted(s.labels.values())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert samples["vit_pictures_total", names[0]] == 3
    assert samples["vit_unreadable_total",] == 1
    assert samples["vit_requests_total", "/classify", "200"] == 3
    assert samples["vit_requests_total", "/classify", "400"] == 1
    assert samples["vit_requests_total", "", "404"] == 3
    assert samples["vit_requests_total", "", "413"] == 1
    assert "nowhere" not in text
    assert samples["vit_classify_seconds_count",] == 4
    assert samples["vit_queue_pictures",] == 0 and samples["vit_queue_limit",] == 64


def test_at_most_a_hundred_classes_are_counted_by_name() -> None:
    from vit.extensions.serve.metrics import Metrics
    from vit.inference.answers import Prediction

    metrics = Metrics(1, lambda: 0)
    for i in range(250):
        metrics.add(Prediction(classes=[f"class {i % 125}"], probabilities=[1.0], unknown=i < 50))
    text = metrics.text().decode()
    assert text.count("vit_pictures_total{") == 100
    assert "vit_pictures_other_total 50.0" in text
    assert 'vit_judged_total{unknown="true"} 50.0' in text
    assert 'vit_judged_total{unknown="false"} 200.0' in text
