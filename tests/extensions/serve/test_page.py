"""The page of `vit serve` in a browser, which is driven against the command in another process."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.command import CLASSES, saved
from vit.extensions.trust.trust import Trust

FOLDER = Path(vit.__file__).parent / "extensions/serve/page"
FILES = {name: (FOLDER / name).read_text() for name in ("index.html", "page.css", "page.js")}
TOKEN = "a+b/c=d"
Payload = dict[str, Any]
"""A file for the page: name, mimeType, buffer."""


def picture(seed: int, name: str = "picture.png") -> Payload:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype("uint8")
    Image.fromarray(pixels).resize((24, 20), Image.Resampling.NEAREST).save(
        out := io.BytesIO(), "png"
    )
    return {"name": name, "mimeType": "image/png", "buffer": out.getvalue()}


PICTURES = [picture(seed, f"{seed}.png") for seed in range(6)]


def percent(share: float) -> str:
    return f"{100 * share:.1f}\xa0%"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows three classes; the second of PICTURES alone is like none of them."""
    folder = saved(tmp_path_factory.mktemp("served") / "model")
    usual = torch.linspace(-40, 0, 40)[None]  # energies; that of the second is 1
    scores = torch.linspace(0.3, 0.999, 40, dtype=torch.float64)
    Trust(measured_on="pictures", images=40, scores=scores, usual=usual).write(folder)
    return folder


@pytest.fixture(scope="module")
def addresses(model: Path) -> Iterator[tuple[str, str]]:
    """Two servers: one for everybody on this machine, and one that asks for TOKEN."""
    command = [sys.executable, "-m", "vit", "serve", str(model), "--port", "0", "--threads", "1"]
    with ExitStack() as stack:
        servers = []
        for token in ("", TOKEN):
            pipe: Any = {"stdout": subprocess.PIPE, "text": True}
            server = subprocess.Popen(command, env=os.environ | {"VIT_TOKEN": token}, **pipe)
            servers.append(stack.enter_context(server))
            stack.callback(server.terminate)
        lines = [server.stdout.readline() for server in servers]
        found = [re.search(r"http://\S+", line) for line in lines]
        yield found[0][0], found[1][0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    reason = "needs playwright (pip install playwright)"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    if (chromium := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("needs the program chromium or google-chrome")
    with playwright.sync_playwright() as driver:
        with driver.chromium.launch(executable_path=chromium) as started:
            yield started


Visit = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, addresses: tuple[str, str]) -> Iterator[Visit]:
    """visit("#token=x", asks=True) -> the page. It may not break its policy, write an error to the
    console, or ask another host."""
    problems: list[str] = []
    with browser.new_context() as context:

        def open_page(place: str = "", *, asks: bool = False, **options: Any) -> Any:
            page = (browser.new_context(**options) if options else context).new_page()
            page.set_default_timeout(10_000)
            home = addresses[asks]
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda m: m.type == "error" and problems.append(m.text))
            page.on("request", lambda r: is_ours(r.url, home) or problems.append(r.url))
            page.goto(home + place)
            return page

        yield open_page
    # The browser itself writes this of every answer that is a refusal.
    refusal = "Failed to load resource: the server responded with a status of"
    assert [problem for problem in problems if not problem.startswith(refusal)] == []


def is_ours(url: str, home: str) -> bool:
    return url.startswith((home, f"blob:{home}", "data:,"))


def expect(target: Any) -> Any:
    from playwright.sync_api import expect

    return expect(target)


def choose(page: Any, pictures: list[Payload], answered: int | None = None) -> None:
    """Gives pictures to the page, and waits until as many as `answered`, or they, are answered."""
    expect(page.locator("#drop")).to_be_visible()  # the model is known
    page.get_by_label("Choose pictures").last.set_input_files(pictures)
    if answered != 0:
        wait(page, answered or len(pictures))


def wait(page: Any, count: int) -> None:
    expect(page.get_by_role("status")).to_contain_text(f"{count} of {count} answered.")


def asked(address: str, content: bytes, query: str = "top=5&coverage=0.9&unknown=0.95") -> Any:
    """The row of the server for a picture, without a browser."""
    with urlopen(Request(f"{address}classify?{query}", content)) as answer:
        [row] = json.load(answer)
    return row


def test_a_picture_shows_what_the_json_says(visit: Visit, addresses: tuple[str, str]) -> None:
    page, row = visit(), asked(addresses[0], PICTURES[0]["buffer"])
    expect(page.locator("#model")).to_contain_text("3 classes")
    choose(page, PICTURES[:1])
    card, best = page.locator("article"), row["top"]
    assert [each["class"] for each in best] != CLASSES and row["unknown"] is False
    assert card.locator(".name").inner_text() == "0.png"
    assert card.locator(".headline").inner_text() == best[0]["class"]
    texts = [each.locator("span").all_inner_texts() for each in card.locator("li").all()]
    assert texts == [[each["class"], percent(each["probability"])] for each in best]
    widths = card.locator("i").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    np.testing.assert_allclose(widths, [100 * each["probability"] for each in best], rtol=1e-3)
    assert card.locator(".scroll").inner_text() == (
        f"Set: {', '.join(row['set'])}. Such sets hold the true class in 90\xa0% of pictures."
    )
    assert page.locator("#all").is_hidden()


def test_none_of_these_stands_above_the_classes_most_alike(
    visit: Visit, addresses: tuple[str, str]
) -> None:
    page, row = visit(), asked(addresses[0], PICTURES[1]["buffer"])
    choose(page, PICTURES[1:2])
    assert row["unknown"] is True
    lines = page.locator("article > div").inner_text().split("\n")
    assert lines[0] == "None of these"
    assert "95\xa0% of the validation pictures" in page.locator("article .small").last.inner_text()
    assert page.locator("li span").first.inner_text() == row["top"][0]["class"]


NAMES = ['a "b", c.png', "=1+1.png", "<img src=x onerror=alert(1)>.png", "two\nlines.png", "@x.png"]


def test_the_table_downloads_as_csv(visit: Visit, addresses: tuple[str, str]) -> None:
    page = visit()
    files = [each | {"name": name} for each, name in zip(PICTURES, NAMES, strict=False)]
    files.append({"name": "words.png", "mimeType": "image/png", "buffer": b"no picture"})
    choose(page, files)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    content = Path(download.value.path()).read_bytes()
    assert content.startswith(b"\xef\xbb\xbfimage,class,probability,set,unknown,error\r\n")
    rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    names = [*NAMES, "words.png"]
    assert [row["image"] for row in rows] == [f"'{n}" if n[0] in "=@" else n for n in names]
    answers = [asked(addresses[0], file["buffer"]) for file in files[:-1]]
    for row, answer in zip(rows, answers, strict=False):
        first = answer["top"][0]
        assert (row["class"], float(row["probability"])) == (first["class"], first["probability"])
        assert (row["set"], row["error"]) == ("|".join(answer["set"]), "")
        assert row["unknown"] == str(answer["unknown"])
    assert (
        [row["unknown"] for row in rows].count("True") == 1
        and rows[-1]["class"] == ""
        and rows[-1]["error"]
    )
    assert page.locator("article").last.locator(".wrong").inner_text() == rows[-1]["error"]
    shown = page.locator("tbody tr").first.locator("td").all_text_contents()
    assert shown[2] == percent(float(rows[0]["probability"])) and shown[4] == "no"
    assert page.locator(".name").all_text_contents() == names
    assert page.locator("tbody td:first-child").all_text_contents() == names
    assert page.locator("td img, p img").count() == 0
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("article")).to_have_count(0)
    assert page.locator("#all").is_hidden()


def test_a_click_shows_the_map_and_goes_back(visit: Visit) -> None:
    page = visit()
    choose(page, PICTURES[:1])
    button = page.locator("button.picture")
    expect(button).to_contain_text(re.compile("^Show (attention rollout|Grad-CAM)$"))
    label, layer = button.inner_text(), button.locator("img").last
    assert layer.is_hidden()
    button.click()
    expect(layer).to_be_visible()
    assert layer.get_attribute("src").startswith("blob:")
    assert layer.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    expect(button).to_have_text("Show the picture")
    button.press("Enter")
    expect(layer).to_be_hidden()
    expect(button).to_have_text(label)


def test_a_server_with_a_token_is_asked_with_it(visit: Visit) -> None:
    page = visit(asks=True)
    form = page.locator("#sign-in")
    expect(form).to_be_visible()
    choose(page, PICTURES[:5], answered=0)
    for token, refused in (("wrong", True), (TOKEN, False)):
        page.locator("#token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        if refused:  # and asked for again
            expect(page.locator("#refused")).to_have_text("This token is wrong.")
            expect(form).to_be_visible()
    wait(page, 5)
    expect(form).to_be_hidden()
    assert page.locator(".headline").count() == 5
    page.locator("button.picture").first.click()
    expect(page.locator("button.picture img").nth(1)).to_be_visible()
    page.reload()
    expect(page.locator("#drop")).to_be_visible()
    expect(form).to_be_hidden()  # it is kept in this tab


def test_a_token_of_the_address_leaves_the_address(
    visit: Visit, addresses: tuple[str, str]
) -> None:
    page = visit(f"#token={TOKEN}", asks=True)
    choose(page, PICTURES[:1])
    assert page.url == addresses[1] and page.locator("#sign-in").is_hidden()
    assert page.locator(".headline").count() == 1


def test_at_most_four_requests_at_a_time(visit: Visit) -> None:
    page, requests = visit(), []

    def hold(route: Any) -> None:
        requests.append(route)
        if len(requests) > 4:
            route.continue_()

    page.route("**/classify?*", hold)
    choose(page, PICTURES, answered=0)
    expect(page.get_by_text("Classifying")).to_have_count(4)
    page.wait_for_timeout(200)
    assert len(requests) == 4
    for route in reversed(requests[:]):
        route.continue_()
    wait(page, 6)
    assert page.locator(".name").all_text_contents() == [each["name"] for each in PICTURES]


def test_a_busy_server_is_asked_again(visit: Visit) -> None:
    page, requests = visit(), []

    def answer(route: Any) -> None:
        requests.append(route)
        if len(requests) == 2:
            route.continue_()
        else:
            wait, reason = {"Retry-After": "0.1"}, {"error": "the queue is full"}
            route.fulfill(status=503, headers=wait, json=reason)

    page.route("**/classify?*", answer)
    choose(page, PICTURES[:1])
    assert len(requests) == 2 and page.locator(".headline").count() == 1
    choose(page, PICTURES[1:2], answered=2)
    assert page.locator("article .wrong").all_inner_texts() == ["the queue is full"]
    assert len(requests) == 2 + 6


def test_several_labels_and_a_model_without_a_map(visit: Visit, browser: Any) -> None:
    page = visit()
    health = {"classes": 2, "multilabel": True, "token": False, "explain": None, "options": {}}
    page.route("**/health", lambda route: route.fulfill(json=health | {"max_bytes": 1000}))
    top = [{"class": name, "probability": p} for name, p in (("dog", 0.9), ("grass", 0.7))]
    row = {"image": "x", "top": top, "labels": ["dog", "grass"]}
    page.route("**/classify?*", lambda route: route.fulfill(json=[row]))
    page.reload()
    big = picture(0, "big.png") | {"buffer": bytes(1001)}
    choose(page, [PICTURES[0], big])
    assert page.locator(".headline").all_inner_texts() == ["dog, grass"]
    assert page.locator("thead th").all_text_contents()[2:] == ["probability", "labels", "error"]
    assert (
        page.locator("article .wrong").inner_text() == "The file is larger than this server takes"
    )
    assert page.locator("button.picture").count() == 0


DROP = """(content) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(content)], "dropped.png"));
    const [drop, paste] = [{ dataTransfer: transfer }, { clipboardData: transfer }];
    document.dispatchEvent(new DragEvent("drop", { cancelable: true, ...drop }));
    document.dispatchEvent(new ClipboardEvent("paste", { cancelable: true, ...paste }));
}"""


def test_pictures_are_dropped_and_pasted_below_a_path_of_a_proxy(visit: Visit) -> None:
    page = visit()

    def forward(route: Any) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace("/models/fish/", "/")))

    page.route("**/models/fish/**", forward)
    home, urls = page.url + "models/fish/", []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(home)
    expect(page.locator("#drop")).to_be_visible()
    page.evaluate(DROP, list(PICTURES[0]["buffer"]))
    wait(page, 2)
    assert page.locator(".name").all_text_contents() == ["dropped.png"] * 2
    assert page.locator(".headline").count() == 2
    page.locator("button.picture").first.click()
    expect(page.locator("button.picture img").nth(1)).to_be_visible()
    paths = {url.removeprefix(home).split("?")[0] for url in urls if url.startswith("http")}
    assert paths == {"", "page.css", "page.js", "health", "classify", "explain"}


def test_the_page_fits_a_phone(visit: Visit) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    long = picture(3, f"{'long' * 30}.png")
    text = {"name": "photo.heic", "mimeType": "image/heic", "buffer": b"none"}
    choose(page, [*PICTURES[:2], long, text])
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    expect(page.get_by_text("Take a photo")).to_be_visible()
    heights = page.locator("button:visible, label:visible.button").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect().height)"
    )
    assert len(heights) == 8 and min(heights) >= 44
    assert page.locator("article").last.locator(".blank").inner_text() == "no preview"


def test_the_files_are_short_and_ask_nobody_else() -> None:
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 300
    for name, text in FILES.items():
        code = re.sub(r"^\s*//.*$|[;,{] //.*$", "", text, flags=re.MULTILINE)
        assert re.search(r"https?:|//|@import|url\(", code) is None, name
        assert re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text) is None
    assert re.search(r"<style|\sstyle=|\son\w+=|javascript:", FILES["index.html"]) is None
    assert re.findall(r"<script(.*?)>(.*?)</script>", FILES["index.html"], re.DOTALL) == [
        (' src="page.js" type="module"', "")
    ]
    addresses = re.findall(r'(?:src|href)="([^"]*)"', FILES["index.html"])
    assert addresses == ["data:,", "page.css", "page.js"]
