"""docs/coming_from.md: what it says to type is taken by our parser."""

import re
import shlex
from pathlib import Path

import pytest

from vit.data.module import ImageData
from vit.extensions.scale import batch_trial
from vit.runs import options
from vit.runs.options import Options

PAGE = (Path(__file__).parents[1] / "docs" / "coming_from.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.*?) ?\| (.*?) ?\|$", PAGE, re.MULTILINE)
TYPED = list(dict.fromkeys(code for _, ours, _ in ROWS for code in re.findall("`(.+?)`", ours)))


def test_each_package_has_a_table() -> None:
    tables = PAGE.split("\n## ")[1:]
    assert [text.splitlines()[0] for text in tables] == [
        "timm's train.py", "ultralytics", "AutoTrain", "MMPretrain",
    ]  # fmt: skip
    assert all(text.count("\n| `") >= 15 for text in tables)
    assert len(TYPED) > 60


@pytest.mark.parametrize("typed", TYPED)
def test_what_the_page_says_to_type_is_accepted(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_photos").mkdir()
    Path("empty.yaml").write_text("model: {}\n")
    monkeypatch.setattr(options, "fill_from_weights", lambda config, built: None)
    monkeypatch.setattr(ImageData, "look", lambda data, before=None: data)
    monkeypatch.setattr(batch_trial, "computes_on_cpu", lambda accelerator: False)
    here = typed.replace("wandb", "tensorboard").replace("--resume FILE", "--resume never")
    words = shlex.split(here)
    recipe = [] if "-c" in words else ["-c", "empty.yaml"]
    data = [] if re.search("--data[- ]", typed) else ["--data=my_photos"]
    parsed = Options([*recipe, "--trainer.precision=32-true", *data, *words])
    assert parsed.config.data.root == "my_photos"
