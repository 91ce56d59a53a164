"""Downloads are resumed, checked and cached. The only server is one of ours, on 127.0.0.1."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from PIL import Image

import vit
from tests.checkpoints.checkpoint_peers import scatter
from tests.checkpoints.loopback import Server, url
from vit import console
from vit.checkpoints.hub import download, fetch, is_address
from vit.checkpoints.native import load_native, save_native
from vit.checkpoints.pretrained import load_pretrained
from vit.checkpoints.publish import model_card, push_to_hub
from vit.cli.main import main
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.zoo import build_model

TINY = ViTConfig(
    image_size=16, patch_size=8, width=32, depth=1, mlp_dim=40, num_heads=4, num_classes=2
)


CONTENT = bytes(range(256)) * 10_000
PREPROCESS = {"image_size": [16, 16]}


def test_a_download_is_cached_and_asked_for_once(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PATIENCE", -1.0)
    server.files["/w.bin"] = CONTENT
    path = download(url(server))
    assert path.read_bytes() == CONTENT and path.name == "w.bin"
    shares = re.findall(r"^w\.bin +(\d+)%  .* MB/s  ETA", capsys.readouterr().err, re.MULTILINE)
    assert shares == ["41", "82", "100"]  # of 2.56 MB, by the MiB
    assert download(url(server)) == path and len(server.asked) == 1


def test_a_broken_transfer_is_continued(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/w.bin"] = CONTENT
    server.break_after = 1_500_000
    with pytest.raises(UserError, match="continued"):
        download(url(server))
    monkeypatch.setattr(console, "PATIENCE", -1.0)
    assert download(url(server)).read_bytes() == CONTENT
    assert server.asked[-1][2] == "bytes=1500000-"
    assert re.findall(r" (\d+)%  ", capsys.readouterr().err) == ["100"]


def test_a_file_that_changed_meanwhile_starts_anew(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    server.break_after = 1_500_000
    with pytest.raises(UserError):
        download(url(server))
    server.files["/w.bin"] = CONTENT[::-1]
    assert download(url(server)).read_bytes() == CONTENT[::-1]


def test_damaged_content_is_refused_and_not_cached(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    server.wrong_hash = True
    with pytest.raises(UserError, match="MD5"):
        download(url(server))
    server.wrong_hash = False
    assert download(url(server)).read_bytes() == CONTENT


def test_a_given_sha256_is_checked(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    right = hashlib.sha256(CONTENT).hexdigest()
    assert download(f"{url(server)}#sha256={right}").is_file()
    with pytest.raises(UserError, match="SHA-256"):
        download(f"{url(server)}#sha256={'0' * 64}")


def test_offline_mode_uses_the_cache_and_nothing_else(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/w.bin"] = CONTENT
    download(url(server))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert download(url(server)).is_file() and len(server.asked) == 1
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        download(url(server, "/other.bin"))


def test_no_server_and_no_file_are_one_line_each(server: Server) -> None:
    with pytest.raises(UserError, match="404"):
        download(url(server, "/missing"))
    with pytest.raises(UserError, match="check the network") as raised:
        download("http://127.0.0.1:9/w.bin")
    assert "\n" not in str(raised.value)


def test_gs_addresses_load_as_pretrained(server: Server, tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    from tests.checkpoints.test_google import drawn, vit_shapes

    np.savez(tmp_path / "w.npz", **drawn(vit_shapes()))
    server.files["/vit_models/imagenet21k/x.npz"] = (tmp_path / "w.npz").read_bytes()
    _, report = load_pretrained("gs://vit_models/imagenet21k/x.npz")
    assert report.format == "Google npz" and report.source.startswith("gs://")


def test_only_addresses_are_fetched(tmp_path: Path) -> None:
    assert all(map(is_address, ("hf://a/b", "gs://a/b", "https://a/b")))
    assert not any(map(is_address, ("a/b", "http", tmp_path, "ftp://a", "http://a/b")))


HF_LOAD = """
import os, sys
import vit
from vit.checkpoints import hub
from vit.checkpoints.pretrained import load_pretrained
from vit.errors import UserError
hub.HUB_SECONDS = float(os.environ.get("SECONDS_FOR_THE_HUB", hub.HUB_SECONDS))
for address in sys.argv[1:]:
    try:
        model, report = load_pretrained(address)
        print(report.format, report.classes, vit.load(address).classes)
    except UserError as error:
        print("refused:", error)
"""


def hf(server: Server, tmp_path: Path, *addresses: str, **variables: str) -> list[str]:
    """In a process of its own: huggingface_hub reads its environment when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **variables,
    }
    command = [sys.executable, "-W", "ignore", "-c", HF_LOAD, *addresses]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)
    assert done.returncode == 0, done.stderr
    host = urlsplit(environment["HF_ENDPOINT"]).hostname
    for line in done.stderr.splitlines():  # nothing of the library's own
        assert line.startswith((f"asking the hub {host} for ", "the hub does not answer ("))
    return done.stdout.splitlines()


def test_hf_repositories_load_from_a_mirror_and_offline(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    directory = tmp_path / "model"
    model = scatter(build_model(TINY))
    save_native(directory, model, classes=["a", "b"], preprocess=PREPROCESS, extra={})
    for file in directory.iterdir():
        server.files[f"/me/pets/resolve/main/{file.name}"] = file.read_bytes()
    expected = "vit ['a', 'b'] ['a', 'b']"
    (refused,) = hf(server, tmp_path, "hf://me/pets", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in refused and not server.asked
    addresses = ("hf://me/pets", "hf://me/pets/model.safetensors", "hf://me/nothing")
    whole, file, missing = hf(server, tmp_path, *addresses)
    assert whole == file == expected and missing.startswith("refused: hf://me/nothing has no")
    server.files.clear()
    assert hf(server, tmp_path, "hf://me/pets", HF_HUB_OFFLINE="1") == [expected]
    # And where nobody says that there is no network: the library alone would try for a minute.
    cached, unknown = hf(
        server, tmp_path, "hf://me/pets", "hf://me/others", HF_ENDPOINT="http://127.0.0.1:9"
    )
    assert cached == expected
    assert unknown.startswith("refused: hf://me/others is not in the cache, and the hub does not")
    assert "give a local file, or fill the cache" in unknown and "HF_HUB_OFFLINE=1" in unknown


def test_a_hub_that_accepts_and_never_answers_is_given_up(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        silence = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "SECONDS_FOR_THE_HUB": "0.5"}
        (refused,) = hf(server, tmp_path, "hf://me/pets", **silence)
    assert "the hub does not answer (" in refused and "HF_HUB_OFFLINE=1" in refused


def test_a_hub_in_trouble_is_not_asked_again_and_again(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    server.status = 503
    (refused,) = hf(server, tmp_path, "hf://me/pets")
    assert "the hub does not answer (127.0.0.1 says 503)" in refused
    assert len(server.asked) == 1


def test_addresses_of_the_hub_are_checked() -> None:
    with pytest.raises(UserError, match="hf://org/repo"):
        fetch("hf://only-one-part")


def test_without_huggingface_hub_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"vitkit\[hub\]"):
        fetch("hf://me/pets")


def test_the_card_says_recipe_metrics_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"recipe": "finetune", "metrics": {"test/acc1": 0.91234567}, "data": "my photos"}
    save_native(tmp_path, build_model(TINY), classes=["cat", "dog"], preprocess=None, extra=extra)
    card = model_card(tmp_path, "me/pets")
    for text in (
        *("# pets", "finetune", "| test/acc1 | 0.9123 |", "my photos", "cat, dog", '"width": 32'),
        *('vit.load("hf://me/pets")', 'pretrained="hf://me/pets"'),
    ):
        assert text in card
    calls: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def create_repo(self, name: str, **options: Any) -> None:
            calls.append((name, options))

        def file_exists(self, name: str, file: str) -> bool:
            assert (name, file) == ("me/pets", "model.safetensors")
            return any(call == "upload" for call, _ in calls)

        def upload_folder(self, **options: Any) -> None:
            calls.append(("upload", options))

    class Library:
        HfApi = Api

    monkeypatch.setattr("vit.checkpoints.publish.hub_library", lambda: Library)
    assert push_to_hub(tmp_path, "me/pets", private=True) == "hf://me/pets"
    assert calls[0] == ("me/pets", {"private": True, "exist_ok": True})
    assert calls[1][1]["folder_path"] == tmp_path and (tmp_path / "README.md").read_text() == card
    (tmp_path / "README.md").write_text("my words")
    with pytest.raises(UserError, match="holds a model already; give overwrite=True"):
        push_to_hub(tmp_path, "me/pets")
    assert len(calls) == 3  # the repository was made sure of, and nothing uploaded
    push_to_hub(tmp_path, "me/pets", overwrite=True)
    assert calls[-1][0] == "upload" and (tmp_path / "README.md").read_text() == "my words"


RECIPE = {
    "data": {"root": "/home/alice/my photos", "dataset": None},
    "model": {"pretrained": "runs/alice/first", "freeze_backbone": False},
    "run_dir": "~/runs/1",
    "trainer": {"logger": "kept in /home/alice/logs", "callbacks": [{"path": "C:\\Users\\alice"}]},
}


def test_what_is_saved_and_published_names_no_local_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "model"
    extra = {"recipe": RECIPE, "source": "https://alice:pw@host/w.npz?signature=1", "note": "a/b"}
    model = build_model(TINY)
    save_native(directory, model, classes=None, preprocess=None, extra=extra)
    saved = json.loads((directory / "config.json").read_text())["extra"]
    assert saved["recipe"]["data"]["root"] == "my photos"
    assert saved["recipe"]["model"] == {"pretrained": "first", "freeze_backbone": False}
    assert saved["source"] == "https://host/w.npz" and saved["note"] == "a/b"
    uploaded: list[bytes] = []

    class Api:
        def create_repo(self, name: str, **options: Any) -> None:
            pass

        def file_exists(self, name: str, file: str) -> bool:
            return False

        def upload_folder(self, folder_path: Path, **options: Any) -> None:
            names = ("README.md", "config.json", "model.safetensors")
            uploaded.extend((folder_path / name).read_bytes() for name in names)
            assert load_native(folder_path)[1].extra == saved

    class Library:
        HfApi = Api

    monkeypatch.setattr("vit.checkpoints.publish.hub_library", lambda: Library)
    push_to_hub(directory, "me/pets")
    assert len(uploaded) == 3 and not any(b"alice" in content for content in uploaded)


def test_a_published_file_classifies_by_its_address(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = scatter(build_model(TINY))
    extra = {"multilabel": True}
    save_native(tmp_path / "m", model, classes=["a", "b"], preprocess=PREPROCESS, extra=extra)
    server.files["/b/model.safetensors"] = (tmp_path / "m" / "model.safetensors").read_bytes()
    Image.new("RGB", (20, 20), "red").save(tmp_path / "photo.png")
    answers = []
    for name in (str(tmp_path / "m"), "gs://b/model.safetensors"):
        assert main(["classify", name, str(tmp_path / "photo.png"), "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)[0]["top"])
    assert answers[0] == answers[1] and vit.load("gs://b/model.safetensors").multilabel


def test_a_run_is_published_by_its_model_and_a_failure_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_native(tmp_path / "model", build_model(TINY), classes=None, preprocess=None, extra={})
    (tmp_path / "config.yaml").touch()

    class Api:
        def create_repo(self, name: str, **options: Any) -> None:
            raise ConnectionError("no route to host\nlong story")

    class Library:
        HfApi = Api

    monkeypatch.setattr("vit.checkpoints.publish.hub_library", lambda: Library)
    with pytest.raises(UserError) as failure:
        vit.push_to_hub(tmp_path, "me/pets")
    assert str(failure.value) == "upload to me/pets failed: no route to host"
    assert (tmp_path / "model" / "README.md").is_file()


def test_foreign_directories_are_not_published(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="vit convert"):
        push_to_hub(tmp_path, "me/pets")
