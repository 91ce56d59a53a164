"""`vit test RUN --with FILE` of several labels per image; of one label: tests/runs."""

import json
from pathlib import Path

import pytest

from tests.command import TINY, Vit
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained


def test_a_file_has_the_thresholds_of_its_run_whatever_the_temperature(
    vit: Vit, photos: Path
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    Path("small.yaml").write_text("data: {augment: {crop: none}}\n")
    paths = sorted(photos.rglob("*.jpg"))
    rows = [f"{path},{path.parent.name}{'|any' * (i % 2)}" for i, path in enumerate(paths)]
    Path("several.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    images = ("--data=several.csv", "--data.label_separator=|", "--data.splits.val_fraction=0.3")
    options = ("--model.optimizer=AdamW", "--model.optimizer.lr=0.01", "--trainer.max_epochs=3")
    done = vit("fit", "-c", "small.yaml", *images, *TINY, *options, "--run_dir=run")
    assert done.status == 0, done.err
    info = inspect_pretrained("run")
    assert info.extra["thresholds"] != [0.5] * 4 and info.extra["temperature"] != 1
    assert vit("export", "run", "x.onnx").status == 0
    done = vit("test", "run", "--with=x.onnx", "--json")
    assert done.status == 0, done.err
    found, plain = json.loads(done.out), json.loads(vit("test", "run", "--json").out)
    assert found.pop("engine").startswith("ONNX Runtime")
    for ours, theirs in zip(found.pop("per_class"), plain.pop("per_class"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert found == pytest.approx(plain, abs=1e-5)
    extra = {**info.extra, "thresholds": [0.9] * 4}
    about = {"classes": info.classes, "preprocess": info.preprocess, "extra": extra}
    save_native(Path("other"), load_pretrained("run")[0], **about)
    assert vit("export", "other", "y.onnx").status == 0
    refused = vit("test", "run", "--with=y.onnx")
    assert refused.status == 2 and "the exported file has other thresholds than run" in refused.err
