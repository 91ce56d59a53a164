"""vit.push_to_hub by huggingface_hub's own requests, to a hub on this machine."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import vit
from tests.extensions.formats.conftest import TINY
from vit.errors import UserError
from vit.models.zoo import build_model
from vit.weights.native import save_native

huggingface_hub = pytest.importorskip("huggingface_hub")


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that an upload needs; weights go by LFS, not hf-xet."""

    server: "Server"

    def log_message(self, *_: object) -> None: ...

    def body(self) -> bytes:
        assert self.headers["Authorization"] == "Bearer hf_secret" or "/lfs/" in self.path
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, content: Any = None, status: int = 200, **headers: str) -> None:
        data = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        [name] = re.findall(r"/me/pets/resolve/main/(.+)", self.path)
        if name in self.server.files:
            return self.answer(X_Repo_Commit="0" * 40, ETag='"1"')
        return self.answer(None, 404, X_Error_Code="EntryNotFound")

    def do_GET(self) -> None:
        self.answer({"id": "me/pets", "sha": "0" * 40, "siblings": []})

    def do_PUT(self) -> None:
        self.server.objects[self.path.rpartition("/")[2]] = self.body()
        self.answer()

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            return self.answer({"url": f"{self.server.url}/me/pets"})
        if self.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            files = [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]
            return self.answer({"files": files})
        if self.path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            upload = f"{self.server.url}/lfs/"
            objects = [{**o, "actions": {"upload": {"href": upload + o["oid"]}}} for o in wanted]
            return self.answer({"transfer": "basic", "objects": objects})
        if self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.server.files[value["path"]] = self.server.objects[value["oid"]]
            url = f"{self.server.url}/me/pets/commit/{'0' * 40}"
            return self.answer({"commitUrl": url, "commitOid": "0" * 40})
        return self.answer({})


class Server(ThreadingHTTPServer):
    """The hub: its repository, and what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    yield server
    server.shutdown()
    server.server_close()


def test_a_model_arrives_whole_and_is_not_replaced_unasked(hub: Server, tmp_path: Path) -> None:
    model, extra = build_model(TINY), {"recipe": "finetune"}
    save_native(tmp_path / "model", model, classes=["cat", "dog"], preprocess=None, extra=extra)
    assert vit.push_to_hub(tmp_path, "me/pets", private=True) == "hf://me/pets"
    [created] = hub.created
    assert (created["name"], created["organization"]) == ("pets", "me")
    assert created.get("private") or created.get("visibility") == "private"
    sent = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert hub.files == sent and {*sent} == {"README.md", "config.json", "model.safetensors"}
    with pytest.raises(UserError, match="holds a model already; give overwrite=True"):
        vit.push_to_hub(tmp_path, "me/pets")
    (tmp_path / "model" / "README.md").write_text("my words")
    vit.push_to_hub(tmp_path, "me/pets", overwrite=True)
    assert hub.files["README.md"] == b"my words"
    for name, content in hub.files.items():
        Path(tmp_path, name).write_bytes(content)
    loaded = vit.create_model(pretrained=tmp_path / "model.safetensors")
    assert {n: t.tolist() for n, t in loaded.state_dict().items()} == {
        n: t.tolist() for n, t in model.state_dict().items()
    }
