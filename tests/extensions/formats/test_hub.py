"""Weights by address, and publishing them. The only server is one of ours, on 127.0.0.1."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vit
from tests.extensions.formats.conftest import TINY
from tests.extensions.formats.loopback import COMMIT, Server, url
from tests.models.small_models import filled
from tests.processes import together
from vit.errors import UserError
from vit.extensions.formats import hub
from vit.extensions.formats.hub import fetch
from vit.models.zoo import build_model
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

PREPROCESS = {"image_size": [16, 16]}


def load_all(variables: dict[str, str], addresses: tuple[str, ...], answers: Path) -> None:
    """Writes what each address gives, with huggingface_hub imported under these variables."""
    os.environ.update(variables)
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
    hub.HUB_SECONDS = float(variables.get("SECONDS_FOR_THE_HUB", hub.HUB_SECONDS))
    with answers.open("w") as lines:
        for address in addresses:
            try:
                model, report = load_pretrained(address)
                print(report.format, report.classes, vit.load(address).classes, file=lines, end="")
                print("".join(f" {row}" for row in licences(model.inherited)), file=lines)
            except UserError as error:
                print("refused:", error, file=lines)


def licences(inherited: Any) -> list[str]:
    return [f"{row['source']}: {row['licence']}" for row in inherited.get("licences", [])]


def hf(server: Server, tmp_path: Path, *addresses: str, **variables: str) -> list[str]:
    """In a process of its own: huggingface_hub reads its environment when it is imported."""
    environment = {
        "HF_ENDPOINT": url(server, ""),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **variables,
    }
    answers = tmp_path / "answers"
    ended = together(1, tmp_path / "printed", load_all, environment, addresses, answers)
    assert ended == [0], (tmp_path / "printed" / "0.err").read_text()
    return answers.read_text().splitlines()


def test_hf_repositories_load_from_a_mirror_and_then_without_it(
    server: Server, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    directory = tmp_path / "model"
    model = filled(build_model(TINY))
    save_native(directory, model, classes=["a", "b"], preprocess=PREPROCESS, extra={})
    for file in directory.iterdir():
        server.files[f"/me/pets/resolve/{COMMIT}/{file.name}"] = file.read_bytes()
    server.files[f"/me/words/resolve/{COMMIT}/README.md"] = b"no weights"
    page = b"---\nlicense: cc-by-nc-4.0\n---\n# Pets"
    server.files[f"/me/pets/resolve/{COMMIT}/README.md"] = page
    expected = "vit ['a', 'b'] ['a', 'b'] hf://me/pets: cc-by-nc-4.0"
    addresses = ("hf://me/pets", "hf://me/pets/model.safetensors", "hf://me/words", "hf://me/none")
    whole, file, empty, missing = hf(server, tmp_path, *addresses)
    assert whole == file == expected
    assert empty == "refused: hf://me/words has no model.safetensors or pytorch_model.bin"
    assert missing.startswith("refused: hf://me/none cannot be fetched (404")
    server.files.clear()
    server.asked.clear()
    addresses = ("hf://me/pets", "hf://me/others")
    cached, unknown = hf(server, tmp_path, *addresses, HF_HUB_OFFLINE="1")
    assert cached == expected and server.asked == []
    assert "HF_HUB_OFFLINE" in unknown and "(HF_HOME)" in unknown
    cached, unknown = hf(server, tmp_path, *addresses, HF_ENDPOINT="http://127.0.0.1:9")
    assert cached == expected
    assert unknown.startswith("refused: hf://me/others cannot be fetched (")


def test_a_hub_that_accepts_and_never_answers_is_given_up(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        silence = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "SECONDS_FOR_THE_HUB": "0.5"}
        (refused,) = hf(server, tmp_path, "hf://me/pets", **silence)
    assert "cannot be fetched (timed out)" in refused


def test_a_hub_in_trouble_is_not_asked_again_and_again(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    server.status = 503
    (refused,) = hf(server, tmp_path, "hf://me/pets")
    assert "503" in refused and len(server.asked) == 2


def test_without_huggingface_hub_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="hf://org/repo"):
        fetch("hf://only-one-part")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"vitkit\[hub\]"):
        fetch("hf://me/pets")


def test_a_published_file_is_loaded_by_its_address(server: Server, tmp_path: Path) -> None:
    model = filled(build_model(TINY))
    extra = {"multilabel": True}
    save_native(tmp_path / "m", model, classes=["a", "b"], preprocess=PREPROCESS, extra=extra)
    server.files["/b/model.safetensors"] = (tmp_path / "m" / "model.safetensors").read_bytes()
    image = Image.new("RGB", (20, 20), "red")
    published = vit.load("gs://b/model.safetensors")
    assert published.multilabel
    assert published.predict(image) == vit.load(tmp_path / "m").predict(image)
