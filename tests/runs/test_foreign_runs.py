"""A run from somebody else: what only reads it imports nothing that its files name, anywhere."""

import contextlib
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.command import TINY, Result, Vit, coloured
from vit.cli.main import main
from vit.errors import UserError
from vit.inference.classifier import load
from vit.runs.records import CONFIG, HEADER

MODULE = "named_by_a_run"
MARK = Path("imported")
"""The module writes it."""
CODE = (
    f"open({str(MARK)!r}, 'w').close()\n\nclass Thing:\n    def __init__(self, most: int = 1): ..."
)
THING = {"class_path": f"{MODULE}.Thing"}
FORMS: dict[str, Any] = {
    "class": THING,
    "arguments": {**THING, "init_args": {"most": 2}},
    "list": [THING],
    "text": f"{MODULE}.Thing",
    "file": "thing.yaml",
    "path": {"__path__": "thing.yaml"},
}
DRAWN = 16
"""Of all triples of a place, a form and a command: 23,706 for the first run."""
RUNS = {
    "classification": ("-c", "cifar10", "--model.loss.function=torch.nn.MultiMarginLoss"),
    "mae": ("-c", "pretrain/mae_cifar10", "--model.decoder_width=16", "--model.decoder_heads=1"),
}
READINGS: dict[str, tuple[str, ...]] = {
    "test": ("test", "run"),
    "validate": ("validate", "run"),
    "predict": ("predict", "run", "--json"),
    "classify": ("classify", "run", "my photos/red/00.jpg", "--json"),
    "export": ("export", "run", "x.onnx", "--overwrite"),
    "robustness": ("robustness", "run", "--data", "my photos", "--limit=2", "--num-workers=0"),
    "trust": ("trust", "run", "--json"),
    "inspect": ("inspect", "run"),
    "runs": ("runs", "."),
    "load": (),
}  # fmt: skip
TRANSFER = ("transfer", "run", "--data", "my photos", "--recipe=small.yaml", "--steps=1")


class Change(NamedTuple):
    """A value put in place of another in a file of a run, before a command reads it."""

    file: str
    place: tuple[str, ...]
    form: str
    reading: str

    def write(self) -> Any:
        """Returns the value that was there."""
        content = yaml.safe_load(Path("run", self.file).read_text())
        inner = content
        for key in self.place[:-1]:
            inner = inner[key]
        before, inner[self.place[-1]] = inner.get(self.place[-1]), FORMS[self.form]
        text = json.dumps(content)  # JSON is YAML
        Path("run", self.file).write_text(HEADER + text if self.file == CONFIG else text)
        return before


def places(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Keys that lead to each group and each leaf."""
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from places(value, (*above, name))


def changes(readings: tuple[str, ...]) -> list[Change]:
    """All that there are for the run in this directory."""
    contents = {
        file: yaml.safe_load(Path("run", file).read_text())
        for file in (CONFIG, "summary.json", "model/config.json")
    }
    return [
        Change(file, place, form, reading)
        for file, content in contents.items()
        for place in places(content)
        for form in FORMS
        for reading in readings
    ]


@pytest.fixture(scope="module", params=RUNS)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, its photos, and the module."""
    home = tmp_path_factory.mktemp(request.param)
    recipe = (*RUNS[request.param], "--data.root=my photos", *TINY, "--trainer.max_epochs=1")
    with contextlib.chdir(home):
        coloured(Path("my photos"))
        splits = "--data.splits.val_fraction=0.2"
        assert main(["fit", *recipe, splits, "--run_dir=run"]) == 0
        Path(f"{MODULE}.py").write_text(CODE)
        Path("thing.yaml").write_text(json.dumps(THING))
        small = "data: {batch_size: 8, image_size: 16, loading: {num_workers: 0}}\n"
        small += "trainer: {max_epochs: 1, precision: 32-true, accelerator: cpu}\n"
        Path("small.yaml").write_text(small)
        shutil.copytree("run", "untouched")
    return home


Read = Callable[[str], Result]


@pytest.fixture
def read(home: Path, vit: Vit, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Read:
    """read("test"): status and output of the command on the run, in its home."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)

    def reading(name: str) -> Result:
        MARK.unlink(missing_ok=True)
        sys.modules.pop(MODULE, None)
        if name == "transfer":
            shutil.rmtree("out", ignore_errors=True)
            return vit(*TRANSFER, "--lr-grid=0.1", "--seeds=1", "--out=out")
        if name != "load":
            return vit(*READINGS[name])
        try:
            top = load("run").predict("my photos/red/00.jpg")
            return Result(0, str(top), "")
        except UserError as error:
            return Result(2, "", f"vit: {error}\n")

    return reading


@contextlib.contextmanager
def restored(*files: str) -> Iterator[None]:
    """The files of the run are as they were when this ends."""
    before = {file: Path("run", file).read_bytes() for file in files}
    try:
        yield
    finally:
        for file, content in before.items():
            Path("run", file).write_bytes(content)


def check(change: Change, read: Read, untouched: dict[str, Result]) -> None:
    """The command imports nothing, and ends with one line and status 2, or as if untouched."""
    with restored(change.file):
        value = change.write()
        done = read(change.reading)
    assert not MARK.exists(), change
    if change.reading == "runs":
        assert done.status == 0 and done.out.startswith("run "), (change, done)
    elif done[:2] != untouched[change.reading][:2]:
        assert done.status == 2 and not done.out, (change, done)
        [*_, line] = done.err.splitlines()
        assert line.startswith("vit: "), (change, done)
        plain = change.form in ("text", "file") and not isinstance(value, dict)
        if change.file == CONFIG and change.place[0] == "data" and not plain:
            assert f"run/{CONFIG}: " in line and change.place[-1] in line, (change, done)


def test_what_only_reads_a_run_imports_nothing(read: Read) -> None:
    untouched = {reading: read(reading) for reading in READINGS}
    encoder = "task: mae" in Path("run", CONFIG).read_text()
    without_classes = {"predict", "classify", "load", "robustness", "trust"} if encoder else set()
    assert {name: done.status for name, done in untouched.items() if done.status} == dict.fromkeys(
        without_classes, 2
    )
    everything = changes((*READINGS,))
    groups = {
        (CONFIG, "data", name) for name in ("columns", "inputs", "loading", "sampling", "splits")
    }
    first = [c for c in everything if (c.file, *c.place) in groups and c.reading == "test"]
    for change in first + random.Random(0).sample(everything, DRAWN):
        check(change, read, untouched)


@pytest.mark.parametrize("name", ["task", "seed_everything", "data", "trainer", "model", "own"])
def test_a_configuration_without_a_section_is_named(name: str, read: Read) -> None:
    config = Path("run", CONFIG)
    content = yaml.safe_load(config.read_text())
    with restored(CONFIG):
        for value in [3, {"a": 1}] if name == "own" else [None, [1], "text"]:
            content[name] = value
            config.write_text(HEADER + json.dumps(content))
            for done in (read("test"), read("export")):
                [line] = [row for row in done.err.splitlines() if row.startswith("vit: ")]
                assert done.status == 2 and f"run/{CONFIG}: {name}" in line
            if value is None:
                del content[name]
                config.write_text(HEADER + json.dumps(content))
                assert f"run/{CONFIG}: {name}=None is not" in read("test").err


@pytest.mark.parametrize(
    "key", ["augment.extra", "augment.extra.class_path", "pseudo.answers", "columns.path.x"]
)
def test_a_key_with_dots_is_no_way_around(key: str, read: Read) -> None:
    config = Path("run", CONFIG)
    content = yaml.safe_load(config.read_text())
    content["data"][key] = f"{MODULE}.Thing"
    with restored(CONFIG):
        config.write_text(HEADER + json.dumps(content))
        for reading in ("test", "export", "validate"):
            done = read(reading)
            assert not MARK.exists() and done.status == 2 and f"data.{key} (" in done.err


@pytest.mark.usefixtures("finishing", "read")
def test_a_report_imports_nothing(vit: Vit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIT_STRICT")
    for change in random.Random(0).sample(changes(("report",)), 3):
        MARK.unlink(missing_ok=True)
        with restored(change.file, "summary.json"):
            change.write()
            done = vit("report", "run")
        assert not MARK.exists() and done.status in (0, 1, 2), (change, done)
