"""Publishing a model: its card, what is uploaded, and what is not said of this machine."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vit
from tests.extensions.formats.conftest import TINY
from vit.errors import UserError
from vit.extensions.formats.publish import model_card, push_to_hub
from vit.models.zoo import build_model
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained


class Hub:
    """In the place of huggingface_hub, with its repositories."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.error: Exception | None = None

    def HfApi(self) -> "Hub":
        return self

    def create_repo(self, name: str, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.created.append({"name": name, **options})

    def file_exists(self, name: str, file: str) -> bool:
        return file in self.files

    def upload_folder(self, folder_path: Path, allow_patterns: list[str], **_: Any) -> None:
        there = [name for name in allow_patterns if (folder_path / name).is_file()]
        self.files = {name: (folder_path / name).read_bytes() for name in there}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr("vit.extensions.formats.publish.needed", lambda *_: hub)
    return hub


def test_the_card_says_recipe_metrics_and_classes_and_is_kept(hub: Hub, tmp_path: Path) -> None:
    extra = {"recipe": "finetune", "metrics": {"test/acc1": 0.91234567}, "data": "my photos"}
    extra["licences"] = [{"part": "weights", "source": "base", "licence": "gemma", "link": "x.org"}]
    save_native(tmp_path, build_model(TINY), classes=["cat", "dog"], preprocess=None, extra=extra)
    card = model_card(tmp_path, "me/pets")
    for text in (
        *("# pets", "finetune", "| test/acc1 | 0.9123 |", "my photos", "cat, dog", '"width": 32'),
        *("| weights | base | gemma, x.org |", 'vit.load("hf://me/pets")'),
        *("classifier.predict(", 'pretrained="hf://me/pets"'),
    ):
        assert text in card
    assert push_to_hub(tmp_path, "me/pets", private=True) == "hf://me/pets"
    assert hub.created == [{"name": "me/pets", "private": True, "exist_ok": True}]
    assert hub.files["README.md"].decode() == card and len(hub.files) == 3
    (tmp_path / "README.md").write_text("my words")
    (tmp_path / "trust.safetensors").touch()
    with pytest.raises(UserError, match="holds a model already; give overwrite=True"):
        push_to_hub(tmp_path, "me/pets")
    push_to_hub(tmp_path, "me/pets", overwrite=True)
    assert hub.files["README.md"] == b"my words" and "trust.safetensors" in hub.files


RECIPE = {
    "data": {"root": "/home/alice/my photos", "dataset": None},
    "model": {"pretrained": "runs/alice/first", "freeze_backbone": False},
    "run_dir": "~/runs/1",
    "trainer": {"logger": "/home/alice/logs", "callbacks": [{"path": "C:\\Users\\alice"}]},
}


def test_what_is_saved_and_published_names_no_local_path(hub: Hub, tmp_path: Path) -> None:
    extra = {"recipe": RECIPE, "source": "https://alice:pw@host/w.npz?signature=1", "note": "a/b"}
    save_native(tmp_path, build_model(TINY), classes=None, preprocess=None, extra=extra)
    saved = json.loads((tmp_path / "config.json").read_text())["extra"]
    assert saved["recipe"]["data"]["root"] == "my photos"
    assert saved["recipe"]["model"] == {"pretrained": "first", "freeze_backbone": False}
    assert saved["source"] == "https://host/w.npz" and saved["note"] == "a/b"
    push_to_hub(tmp_path, "me/pets")
    assert not any(b"alice" in content for content in hub.files.values())
    assert inspect_pretrained(tmp_path).extra == saved


def test_a_run_is_published_by_its_model_and_a_failure_is_one_line(
    hub: Hub, tmp_path: Path
) -> None:
    save_native(tmp_path / "model", build_model(TINY), classes=None, preprocess=None, extra={})
    (tmp_path / "config.yaml").touch()
    hub.error = ConnectionError("no route to host\nlong story")
    with pytest.raises(UserError) as failure:
        vit.push_to_hub(tmp_path, "me/pets")
    assert str(failure.value) == "upload to me/pets failed: no route to host"
    assert (tmp_path / "model" / "README.md").is_file()
    (tmp_path / "other").mkdir()
    torch.save({}, tmp_path / "other" / "w.pth")
    with pytest.raises(UserError, match="vit convert"):
        push_to_hub(tmp_path / "other", "me/pets")
