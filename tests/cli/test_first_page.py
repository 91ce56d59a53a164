"""README's first page, typed as it stands in an empty directory."""

import json
import re
import shlex
from glob import glob
from pathlib import Path

import pytest

from tests.command import Vit
from tests.extensions.formats.mirror import BACKBONE, mirrored

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
# The page fine-tunes for 300 steps of 224 pixels, which takes 20 minutes; the last value counts.
SHORT = ("--trainer.max_steps=1", "--data.image_size=28", "--run_dir=runs/tuned")


def commands() -> dict[str, list[str]]:
    """First words of a command -> its arguments, from the section about one's own photos."""
    block = README.partition("## Your own photos")[2].partition("```sh\n")[2].partition("```")[0]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert all(line[0] == "vit" for line in lines)
    return {re.sub(" --.*| runs/.*", "", " ".join(line[1:])): line[1:] for line in lines}


@pytest.fixture
def pictures(photos: Path) -> None:
    """The files that the page names, in the current directory."""
    for photo in photos.glob("*/*[6-9].jpg"):
        photo.unlink()
    photos.rename("my_photos")
    Path("more").mkdir()
    for source, copy in (("red/00.jpg", "photo.jpg"), ("blue/01.jpg", "more/1.jpg")):
        Path(copy).write_bytes((Path("my_photos") / source).read_bytes())


def typed(args: list[str]) -> list[str]:
    """Arguments as a shell passes them."""
    return [file for arg in args for file in (sorted(glob(arg)) if "*" in arg else [arg])]


def test_the_first_page_gives_a_classifier_and_needs_the_network_once(
    vit: Vit, pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = commands()
    assert list(page) == ["data check my_photos/", "fit -c probe", "classify", "export"]
    assert vit(*page["data check my_photos/"]).status == 0
    with mirrored(tmp_path / "cache", monkeypatch) as mirror:
        mirror.put(BACKBONE)
        done = vit(*page["fit -c probe"])
        assert done.status == 0, done.err
        assert f"{BACKBONE}: 127.0.0.1, 88 MB, licence apache-2.0" in done.err
        assert "test accuracy" in done.out
        assert len(mirror.asked) == 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answers = vit(*typed(page["classify"]))
    assert answers.status == 0, answers.err
    assert re.findall(r"^(?! )(.*)$", answers.out.rstrip(), re.M) == ["photo.jpg", "more/1.jpg"]
    assert {"red", "grün", "blue"} <= set(answers.out.split())
    assert "\n`vit fit --data my_photos/` then trains all layers" in README
    done = vit("fit", "--data", "my_photos/", *SHORT)
    assert done.status == 0, done.err
    assert f"pretrained: {BACKBONE}" in Path("runs/tuned/config.yaml").read_text()
    described = json.loads(Path("runs/tuned/model/config.json").read_text())
    assert described["preprocess"]["mean"] == [0.485, 0.456, 0.406]  # of the weights
