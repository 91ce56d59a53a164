"""What a finished run reports."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from tests.command import TINY, Vit, parts, table
from vit.label_tree import LabelTree
from vit.runs.finish import limit_option
from vit.runs.scoring import CollectPredictions
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained


@pytest.mark.parametrize("several", [False, True])
def test_answers_of_shuffled_batches_come_back_in_the_order_of_the_set(several: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.rand(50, 7, generator=generator)
    labels = (outputs > 0.5).float() if several else outputs.argmin(-1)
    tree = None if several else LabelTree(["a/a", "a/b/c", "a/b/d", "b/a", "c", "d/a", "d/b"])
    collect, nothing = CollectPredictions({}, tree), cast(Any, None)
    for part in torch.randperm(50, generator=generator).split(8):
        batch = (torch.empty(len(part), 3, 1, 1), labels[part], part)
        collect.on_test_batch_end(nothing, nothing, outputs[part], batch, 0)
    found = collect.gathered([f"{i}.jpg" for i in range(50)])
    assert found is not None and found.indices.tolist() == list(range(50))
    assert found.names[17] == "17.jpg"
    np.testing.assert_array_equal(found.labels, labels.numpy())
    first = np.take_along_axis(outputs.numpy(), found.top_classes, axis=1)
    np.testing.assert_array_equal(found.top_probabilities, first)
    if several:
        np.testing.assert_array_equal(found.probabilities(), outputs.numpy())
    else:
        of_label = np.take_along_axis(outputs.numpy(), labels.numpy()[:, None], axis=1)[:, 0]
        np.testing.assert_array_equal(found.label_probabilities, of_label)
        assert found.top_classes.shape == (50, 5)  # so that many classes take no more memory
        level_1 = outputs.double() @ torch.eye(4).double()[[0, 0, 0, 1, 2, 3, 3]]
        right = level_1.argmax(-1) == torch.tensor([0, 0, 0, 1, 2, 3, 3])[labels]
        assert found.level_hits is not None and found.level_hits[:, 0].tolist() == right.tolist()


def exported_logits(vit: Vit, score: float) -> None:
    """The run is scored by its exported file; a file of other classes is refused."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    assert vit("export", "run", "x.onnx").status == 0
    done = vit("test", "run", "--with", "x.onnx")
    assert done.status == 0 and done.out.startswith("computed by ONNX Runtime")
    assert "other weights" not in done.err
    assert f"val/acc1 {score:.4f}" in " ".join(done.out.split())
    found = json.loads(vit("test", "run", "--with=x.onnx", "--json").out)
    plain = json.loads(vit("test", "run", "--json").out)
    assert found.pop("engine").startswith("ONNX Runtime")
    assert found == pytest.approx(plain, abs=1e-5)
    info, network = inspect_pretrained("run"), load_pretrained("run")[0]
    torch.nn.init.normal_(network.get_parameter("head.weight"))
    about = {"classes": info.classes, "preprocess": info.preprocess, "extra": info.extra}
    save_native(Path("other"), network, **about)
    assert vit("export", "other", "y.onnx").status == 0
    assert "the file has other weights than run" in vit("test", "run", "--with", "y.onnx").err
    about["extra"] = info.extra | {"temperature": 3.0}
    save_native(Path("hotter"), load_pretrained("run")[0], **about)
    assert vit("export", "hotter", "z.onnx").status == 0
    refused = vit("test", "run", "--with", "z.onnx")
    assert refused.status == 2 and "the exported file has another temperature" in refused.err
    about["extra"] = info.extra | {"tree": True}
    save_native(Path("tree"), load_pretrained("run")[0], **about)
    assert vit("export", "tree", "t.onnx").status == 0
    refused = vit("test", "run", "--with", "t.onnx")
    assert refused.status == 2 and "do not both have a tree of classes" in refused.err
    config = Path("run/model/config.json")
    content = config.read_text(encoding="utf-8")
    config.write_text(content.replace('"blue"', '"teal"'), encoding="utf-8")
    assert vit("export", "run").status == 0 and Path("run/model.onnx").is_file()
    config.write_text(content, encoding="utf-8")
    refused = vit("test", "run", "--with", "run/model.onnx")
    assert refused.status == 2 and "the exported file has other classes than run" in refused.err


@pytest.mark.usefixtures("finishing")
def test_without_test_images_val_is_scored_again_and_unlabelled_photos_are_for_classify(
    vit: Vit, photos: Path
) -> None:
    root = parts(photos, *["train"] * 5, "val")
    done = vit("fit", "-c", "cifar10", "--data", root, "--steps", "2", "--run-dir=run", *TINY)
    assert done.status == 0 and "report         file:///" in done.out
    score = json.loads(Path("run/summary.json").read_text())["metrics"]["val/acc1"]
    again = vit("test", "run", "--json")
    assert json.loads(again.out)["val/acc1"] == score
    assert "there are no test images: val is scored" in again.err
    exported_logits(vit, score)
    loose = Path("loose")
    loose.mkdir()
    Image.new("RGB", (20, 20)).save(loose / "a.jpg")
    refused = vit("predict", "run", "--data", loose)
    assert refused.status == 2
    assert "for photos without labels: vit classify run loose" in refused.err
    named = vit("classify", "run", str(loose / "*.jpg"))  # a pattern that was quoted
    assert named.status == 0 and "loose/a.jpg" in named.out


@pytest.mark.usefixtures("finishing")
def test_a_run_on_a_tree_is_scored_by_level_and_answers_with_nodes(vit: Vit, photos: Path) -> None:
    for name in ("blue", "grün", "red"):
        target = Path("tree") / ("warm" if name == "red" else "cold/deep") / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (photos / name).rename(target)
    args = ("fit", "-c", "cifar10", "--data", "tree", "--data.labels=tree", "--run-dir=run", *TINY)
    assert vit(*args, "--steps", "4").status == 0
    metrics = json.loads(Path("run/summary.json").read_text())["metrics"]
    classes = ["cold/deep/blue", "cold/deep/grün", "warm/red"]
    rows = table("run/predictions.csv")
    hits = []
    for row in rows:  # of three classes all are listed
        places = ("", "_2", "_3")
        given = {row[f"predicted{i}"]: float(row[f"probability{i}"]) for i in places}
        assert sorted(given) == classes
        hits.append((given["warm/red"] < 0.5) == row["label"].startswith("cold"))
    assert metrics["test/acc1_level1"] == metrics["test/acc1_level2"] == sum(hits) / len(rows)
    again = json.loads(vit("test", "run", "--json").out)
    assert again == {name: value for name, value in metrics.items() if name[:4] == "test"}
    Path("tree").rename("others")
    others = vit("test", "run", "--data", "others", "--json")
    assert others.status == 0 and "test/acc1_level2" in json.loads(others.out)
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "Answers in the tree" in page and "Accuracy, level 2 of the tree" in page
    for path in ("run", "run/checkpoints/best.ckpt"):
        done = vit("classify", path, "others/warm", "--confidence", 0, "--json")
        assert {row["answer"] for row in json.loads(done.out)} <= {*classes}


@pytest.mark.parametrize(
    ("epochs", "most", "taken", "stop", "option"),
    [
        (-1, 30, 30, True, "--steps 60"),
        (-1, 30, 3, True, ""),  # ended by a watch
        (-1, -1, 7, False, "--steps 14"),
        (4, -1, 40, False, "--epochs 8"),
        (4, 30, 12, False, "--epochs 8"),
        (4, -1, 20, SimpleNamespace(wait_count=2, patience=2), "--patience 4"),
        (4, -1, 40, SimpleNamespace(wait_count=1, patience=2), "--epochs 8"),
    ],
)
def test_a_longer_run_is_asked_for_by_the_limit_that_there_is(
    epochs: int, most: int, taken: int, stop: Any, option: str
) -> None:
    trainer: Any = SimpleNamespace(max_epochs=epochs, max_steps=most, global_step=taken)
    trainer.should_stop = stop is True
    trainer.early_stopping_callbacks = [] if isinstance(stop, bool) else [stop]
    options: Any = SimpleNamespace(config={})
    assert limit_option(options, trainer) == option
