"""Licences: from where they are stated into all that is made of a model, without loss or repeat."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vit as package
from tests.command import TINY, Vit, photos, saved, vit
from tests.extensions.formats.mirror import CLASSIFIER, Mirror, mirrored
from tests.extensions.serve.serving import served
from vit.errors import UserError
from vit.extensions.formats import published
from vit.extensions.formats.convert import convert
from vit.extensions.licences import rows
from vit.extensions.licences.page import UNSAID, of_page, source_of
from vit.extensions.transfer.selftrain import _licences
from vit.weights.pretrained import load_pretrained

__all__ = ["photos", "vit"]

NC = {"part": "weights", "source": CLASSIFIER, "licence": "cc-by-nc-4.0"}
LINE = f"licence of the weights {CLASSIFIER}: cc-by-nc-4.0, NOT FOR COMMERCIAL USE"
MIT = {"part": "weights", "source": "base", "licence": "mit"}
OWN = {"part": "weights", "source": "hf://a/b", "licence": "apple-amlr", "link": "LICENSE"}
TAUGHT = {**OWN, "part": "teacher's weights"}
FIT = (*TINY[1:], "--trainer.max_steps=1")


@pytest.fixture(autouse=True)
def nothing_printed() -> None:
    rows._note_once.cache_clear()


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """A published name whose licence forbids commercial use."""
    with mirrored(tmp_path / "cache", monkeypatch) as server:
        server.put(CLASSIFIER)
        table = published.table()
        row = replace(table[CLASSIFIER], licence=NC["licence"])
        monkeypatch.setattr(published, "table", lambda: {**table, CLASSIFIER: row})
        yield server


def recorded(folder: Path | str) -> Any:
    """The licences in config.json."""
    return json.loads(Path(folder, "config.json").read_text())["extra"].get("licences")


def licences(weights: Path | str) -> Any:
    return load_pretrained(weights)[0].inherited.get("licences")


def test_a_published_licence_goes_through_a_run_and_its_files(
    mirror: Mirror, vit: Vit, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ("--data", photos, "--model.pretrained", CLASSIFIER, "--run_dir=run")
    done = vit("fit", "-c", "finetune", *FIT, *start)
    assert done.status == 0 and done.err.count(LINE) == 1, done.err
    assert recorded("run/model") == [NC]
    for path in Path("run/checkpoints").iterdir():
        assert licences(path) == [NC]
    done = vit("fit", "-c", "finetune", *FIT, "--data", photos, "--pretrained=run", "--run_dir=on")
    assert done.status == 0 and recorded("on/model") == [NC]
    for form in ("native", "timm", "huggingface"):
        rows._note_once.cache_clear()
        done = vit("convert", "on", form, "--to", form, "--json")
        assert done.status == 0 and done.err.count(LINE) == 1, done.err
        assert licences(form) == [NC]
    convert("timm", "again", "native")
    assert recorded("again") == [NC]
    notes = convert("on", "w.npz", "google").notes
    assert any("no word for the licences" in note for note in notes)
    classifier = package.load("on")
    assert recorded(package.save(classifier, "copy")) == [NC]
    rows._note_once.cache_clear()
    with served(Path("on")):
        assert LINE in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["onnx", "xml", "pt2"])
def test_an_exported_file_has_the_licences_and_says_them(
    suffix: str, vit: Vit, photos: Path
) -> None:
    pytest.importorskip({"onnx": "onnxruntime", "xml": "openvino", "pt2": "torch"}[suffix])
    model = saved(Path("model"), extra={"licences": [MIT, TAUGHT]})
    done = vit("export", model, f"m.{suffix}", "--json")
    own = "licence of the teacher's weights hf://a/b: apple-amlr, WITH TERMS OF ITS OWN, LICENSE"
    assert done.status == 0 and done.err.count(own) == 1, done.err
    if suffix == "pt2":
        extra = {"vit.json": ""}
        torch.export.load("m.pt2", extra_files=extra)
        assert json.loads(extra["vit.json"])["licences"] == [MIT, TAUGHT]
        return
    assert _licences(package.load(f"m.{suffix}")) == {"licences": [MIT, TAUGHT]}
    rows._note_once.cache_clear()
    done = vit("classify", f"m.{suffix}", photos / "red" / "00.jpg", "--json")
    assert done.status == 0 and done.err.count(own) == 1, done.err


def test_a_student_has_the_licences_of_its_start_and_of_its_teacher(vit: Vit, photos: Path) -> None:
    saved(Path("start"), extra={"licences": [MIT]})
    saved(Path("teacher"), extra={"licences": [OWN, TAUGHT, MIT]}, seed=1)
    taught = ("--teacher=teacher", "--data", photos)
    done = vit("fit", "-c", "finetune", *FIT, *taught, "--pretrained=start", "--run_dir=one")
    assert done.status == 0, done.err
    both = [MIT, TAUGHT, {**MIT, "part": "teacher's weights"}]
    assert recorded("one/model") == both == licences("one/checkpoints/last.ckpt")
    # A student's student: what it learned from stays, once, and the start is a teacher's.
    done = vit("fit", "-c", "distill", *TINY, "--steps=1", "--teacher=one", "--data", photos)
    assert done.status == 0, done.err
    [run] = [path.parent for path in Path("runs").rglob("summary.json")]
    assert recorded(run / "model") == [{**MIT, "part": "teacher's weights"}, TAUGHT]


def test_pretraining_lora_and_averages_keep_them(vit: Vit, photos: Path) -> None:
    saved(Path("a"), extra={"licences": [MIT]})
    saved(Path("b"), extra={"licences": [OWN, MIT]}, seed=1)
    task = ("-c", "pretrain/masked_patches_cifar10", "--model.architecture=null")
    done = vit("fit", *task, *FIT, "--data", photos, "--pretrained=a", "--run_dir=masked")
    assert done.status == 0, done.err
    assert recorded("masked/model") == [MIT]
    for name in ("a", "b"):
        start = ("--data", photos, "--run_dir", f"of_{name}", f"--pretrained={name}")
        start = (*start, "--model.lora=2", "--data.splits.val_fraction=0.4")
        done = vit("fit", "-c", "finetune", *FIT, *start)
        assert done.status == 0, done.err
    done = vit("average", "of_a", "of_b", "--out=soup")
    assert done.status == 0, done.err
    assert recorded("of_b/model") == [OWN, MIT] and recorded("soup") == [MIT, OWN]


def header(folder: Path, text: str) -> Any:
    """Licence and link by a page."""
    (folder / "README.md").write_text(text, encoding="utf-8")
    [row] = of_page(folder, "weights")
    assert row["part"] == "weights" and row["source"] == folder.name
    return (row["licence"], row["link"]) if "link" in row else row["licence"]


def test_the_header_of_a_page_is_read_whatever_it_holds(tmp_path: Path) -> None:
    for text, stated in {
        "---\nlicense: mit\n---\n# A model": "mit",
        "\ufeff---\r\nlicense: CC-BY-NC-4.0\r\n---\r\n": "CC-BY-NC-4.0",
        "---\nlicense: other\nlicense_name: a-b---c\nlicense_link: LICENSE\n---": (
            "a-b---c",
            "LICENSE",
        ),
        "---\nlicense: other\nlicense_link: https://a.b/c\n---": ("other", "https://a.b/c"),
        "---\nlicense: [mit, 'apache-2.0']\n---": "mit and apache-2.0",
        "---\nlicense: 1.0\n---": "1.0",
        "---\nlicense: other\n---": UNSAID,
        "# No header\nlicense: mit": UNSAID,
        "---\nlicense: mit": UNSAID,
        "---\n- mit\n---": UNSAID,
        "---\nlicense: {a: b}\n---": UNSAID,
        "---\nlicense: [[mit]]\n---": UNSAID,
        "---\nlicense: mit\n\t: }\n---": UNSAID,
        "---\nlicense: !!python/object/apply:os.abort []\n---": UNSAID,
        '---\nlicense: "mit\\e[31m\\nvit: done"\n---': "mit\\x1b[31m\\nvit: done",
        "---\nlicense: \x1b[31mmit\n---": UNSAID,
        "": UNSAID,
    }.items():
        assert header(tmp_path, text) == stated, text
    assert len(header(tmp_path, f"---\nlicense: {'m' * 5000}\n---")) == 100
    bomb = "a: &a [x]\n" + "".join(f"{b}: &{b} [{f'*{a},' * 9}]\n" for a, b in ("ab", "bc", "cd"))
    assert header(tmp_path, f"---\n{bomb}license: *d\n---") == UNSAID


def test_a_hostile_page_takes_no_time(tmp_path: Path) -> None:
    began = time.process_time()
    for text in ("[" * 2**22, "a: b\n" * 2**19, "{a: " * 2**20, "--- " * 2**20):
        assert header(tmp_path, f"---\nlicense: mit\nx: {text}\n---\n") == UNSAID
    assert time.process_time() - began < 5


def test_a_page_speaks_for_the_files_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(saved(tmp_path / "ours"), tmp_path / "theirs", "timm")
    assert licences(tmp_path / "theirs") is None and "licence" not in capsys.readouterr().err
    page = tmp_path / "theirs" / "README.md"
    page.write_text("# Mine")
    expected = {"part": "weights", "source": "theirs", "licence": UNSAID}
    assert licences(tmp_path / "theirs") == [expected] == licences(tmp_path / "theirs")
    assert capsys.readouterr().err.count(f"weights theirs: {UNSAID}") == 1
    page.write_text("---\nlicense: mit\n---")
    assert licences(tmp_path / "theirs") == [{**expected, "licence": "mit"}]
    # Ours says nothing for itself; a publisher's word stands beside what it was made of.
    (saved(tmp_path / "b", extra={"licences": [OWN]}) / "README.md").write_text("# Mine")
    assert licences(tmp_path / "b") == [OWN]
    (tmp_path / "b" / "README.md").write_text("---\nlicense: mit\n---")
    assert licences(tmp_path / "b") == [OWN, {**MIT, "source": "b"}]


def test_a_repository_in_the_hubs_cache_has_its_address(tmp_path: Path) -> None:
    place = tmp_path / "models--timm--vit_base--x.metaclip_400m" / "snapshots" / "0a1b"
    assert source_of(place) == "hf://timm/vit_base--x.metaclip_400m"
    assert source_of(tmp_path / "models--a--b" / "refs" / "0a1b") == "0a1b"


@pytest.mark.parametrize(
    "value",
    ["mit", {"weights": "mit"}, [{"part": "weights"}], [{**MIT, "link": 3}], [[]], [MIT] * 1001],
)
def test_rows_of_another_form_are_refused_in_one_line(value: object, tmp_path: Path) -> None:
    saved(tmp_path / "m", extra={"licences": value})
    with pytest.raises(UserError, match="are not at most 1,000 rows of part, source and"):
        load_pretrained(tmp_path / "m")


def test_a_description_prints_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**MIT, "licence": "mit\x1b[2J\nvit: all is well"}
    long = {**MIT, "licence": "x" * 100_000}
    load_pretrained(saved(tmp_path / "m", extra={"licences": [row, long]}))
    printed = capsys.readouterr().err
    assert len(printed) < 1000
    assert "\x1b" not in printed and "mit\\x1b[2J\\nvit: all is well" in printed
