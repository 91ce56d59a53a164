"""A server on 127.0.0.1 in the place of the hosts of published weights, with random values."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.extensions.formats.loopback import Server, url
from vit.extensions.formats import published
from vit.extensions.formats.convert import convert
from vit.models.zoo import build_model, model_config
from vit.weights.native import save_native

CLASSIFIER = "vit_ti16.augreg_in21k_ft_in1k"
IN21K = "vit_ti16.augreg_in21k"
BACKBONE = "dinov2_s14.lvd142m"


class Mirror(Server):
    """Serves the files of the table."""

    def put(self, name: str, content: bytes | None = None) -> bytes:
        """Offers the file of that name: the content, or random values in the exact layout."""
        content = random_file(name) if content is None else content
        self.files[path_of(name)] = content
        return content


def path_of(name: str) -> str:
    """Where the mirror has the file of that name."""
    return f"/{name}/" + published.table()[name].address.rpartition("/")[2]


@contextmanager
def mirrored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """The table with the mirror's addresses and without digests; and an empty cache."""
    monkeypatch.setenv("VIT_CACHE", str(cache))
    with Mirror.running(monkeypatch) as server:
        rows = {
            name: replace(row, sha256=None, address=url(server, path_of(name)))
            for name, row in published.table().items()
        }
        monkeypatch.setattr(published, "table", lambda: rows)
        yield server


@cache
def random_file(name: str) -> bytes:
    """A file in the layout of the row, with random values."""
    row = published.table()[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if row.format == "google":
            model = build_model(model_config(row.architecture, num_classes=row.outputs))
            torch.nn.init.normal_(model.head.weight)  # pyright: ignore
            save_native(folder, model, classes=None, preprocess=row.preprocess(), extra={})
            convert(folder, Path(folder, "w.npz"), to="google")
            return Path(folder, "w.npz").read_bytes()
        assert row.timm is not None and "dinov2" in row.timm
        state = pytest.importorskip("timm").create_model(row.timm).state_dict()
        path = Path(folder, "w.pth")
        torch.save({**state, "mask_token": torch.zeros(1, state["cls_token"].shape[-1])}, path)
        return path.read_bytes()
