"""docs/habits.md: each habit is typed as it stands there, and what the page says of it happens."""

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.command import Vit, photos, vit
from tests.extensions.formats.mirror import BACKBONE, CLASSIFIER, mirrored

__all__ = ["photos", "vit"]

PAGE = (Path(__file__).parents[1] / "docs" / "habits.md").read_text(encoding="utf-8")
WORKS = "works as typed"
# The only changes that the page makes to what is typed elsewhere.
RENAMED = {
    r"^python train.py": "vit train",
    r"^python main.py|^yolo": "vit",
    r"\btimm\.": "vit.",
    r"\bmodel\.train\(": "vit.fit(",
    r'YOLO\("[^"]+"\)|load_learner\("[^"]+"\)': 'vit.load("runs/my_photos-finetune")',
    r'pipeline\("image-classification", model=': "vit.load(",
    r"AutoModel\.from_pretrained": "vit.create_model",
    r"(?=\b(ImageDataLoaders|vision_learner)\b)": "vit.",
}
# A recipe of one's own, small enough that a step takes milliseconds.
RECIPE = """\
data: {root: my_photos, image_size: 16, batch_size: 8, loading: {num_workers: 0}}
model:
  architecture: {patch_size: 8, width: 16, depth: 1, mlp_dim: 32, num_heads: 1}
trainer: {max_epochs: 1, accelerator: cpu, precision: 32-true, enable_progress_bar: false}
"""


class Habit(NamedTuple):
    there: str
    here: str
    result: str


def habits(page: str) -> list[Habit]:
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+?) \|$", page, re.MULTILINE)
    return [Habit(*row) for row in rows]


LISTED, _, REFUSED = PAGE.partition("## Refused")


def test_the_page_counts_its_rows() -> None:
    rows = habits(LISTED)
    works = sum(row.result.startswith(WORKS) for row in rows)
    assert (works, len(rows)) == (20, 25)
    assert f"{works} of the {len(rows)} work as\ntyped" in LISTED
    assert len(re.findall(r"^\| `", PAGE, re.MULTILINE)) == len(rows) + len(habits(REFUSED))


@pytest.mark.parametrize("row", habits(PAGE), ids=lambda row: row.there)
def test_only_names_of_commands_imports_and_files_differ(row: Habit) -> None:
    typed = row.there
    for theirs, ours in RENAMED.items():
        typed = re.sub(theirs, ours, typed)
    assert typed == row.here


class Typist:
    """Types commands and Python, one after another, in one directory."""

    def __init__(self, vit: Vit) -> None:
        self.vit = vit
        self.names: dict[str, Any] = {"images": torch.randn(1, 3, 224, 224)}
        exec("import torch, vit", self.names)

    def fails(self, typed: str) -> str:
        """How the line fails, in one line; an empty string if it works."""
        if typed.startswith("vit "):
            status, _, err = self.vit(*shlex.split(typed)[1:])
            return err.splitlines()[-1] if status else ""
        try:
            exec(typed, self.names)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def test_every_habit_does_what_the_page_says(
    vit: Vit, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for photo in photos.glob("*/*[4-9].jpg"):
        photo.unlink()
    photos.rename("my_photos")
    Path("more").mkdir()
    Path("photo.jpg").write_bytes(Path("my_photos/red/00.jpg").read_bytes())
    Path("more/1.jpg").write_bytes(Path("my_photos/blue/01.jpg").read_bytes())
    Path("config.yaml").write_text(RECIPE)
    typist = Typist(vit)
    with mirrored(tmp_path / "cache", monkeypatch) as mirror:
        mirror.put(CLASSIFIER)
        mirror.put(BACKBONE)
        for row in habits(PAGE):
            if "my_export" in row.here and not Path("my_export").exists():
                export = "vit convert runs/my_photos-finetune my_export --to huggingface"
                assert not typist.fails(export)
            failure = typist.fails(row.here)
            if row.result.startswith(WORKS):
                assert not failure, f"{row.here}: {failure}"
            else:
                assert failure, f"{row.here} works"
                instead = shorter(row.result.strip("`"))
                failure = typist.fails(instead)
                assert not failure, f"{instead}: {failure}"


def shorter(typed: str) -> str:
    """The same run on small images, and for one step where the line sets no length."""
    if typed.startswith("vit train") and "--epochs" not in typed:
        return f"{typed} --steps 1 --image-size 32"
    return typed.replace("epochs=1)", "image_size=32, epochs=1)")
