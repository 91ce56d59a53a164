"""vit imagenet on miniatures of the five sets, against the logits of every image."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.command import Vit
from vit.confidence import fit_temperature
from vit.extensions.evaluation.imagenet_variants import score
from vit.extensions.evaluation.robustness import output_names
from vit.extensions.formats.class_names import imagenet_classes, imagenet_ids
from vit.inference.classifier import load
from vit.models.config import ViTConfig
from vit.models.vision_transformer import VisionTransformer
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

IDS = imagenet_ids()
SHOWN = {"val": "val", "v2": "V2", "a": "A", "r": "R"}
SHIFTED = {"a": np.arange(3, 1000, 5), "r": np.arange(1, 1000, 5)}
SIDE = 8


def tiny(num_classes: int) -> VisionTransformer:
    config = ViTConfig(
        image_size=(SIDE, SIDE), patch_size=SIDE, width=16, depth=1, mlp_dim=8, num_heads=1,
        num_classes=num_classes, pool="gap", class_token=False, pos_embed="none",
    )  # fmt: skip
    model, generator = VisionTransformer(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model


def save(folder: Path, model: VisionTransformer, classes: list[str] | None) -> Path:
    preprocess = {"image_size": [SIDE, SIDE], "crop_fraction": 1.0}
    save_native(folder, model, classes=classes, preprocess=preprocess, extra={})
    return folder


class Sets:
    """The folders, and for each the logits and labels of its images in a fixed order."""

    def __init__(self, root: Path) -> None:
        self.root, self.random, self.count = root, np.random.default_rng(0), 0
        self.model = save(root / "model", tiny(1000), None)
        self.classifier = load(self.model)
        self.logits: dict[str, np.ndarray] = {}
        self.labels: dict[str, np.ndarray] = {}
        self.files: dict[str, list[Path]] = {}
        everything = np.arange(1000)
        self.fill("val", everything, lambda k: IDS[k])
        self.fill("v2", everything, str)
        for name, among in SHIFTED.items():
            self.fill(name, among, lambda k: IDS[k])

    def fill(self, name: str, among: np.ndarray, folder_of) -> None:
        """One image per class, and as many more in the folder of the class that the model says."""
        count = 2 * len(among) if len(among) < 1000 else 1400
        pixels = self.random.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        with torch.no_grad():
            model, preprocess = self.classifier.model, self.classifier.preprocess
            logits = model(preprocess.normalize(batch)).numpy()
        labels = among[logits[:, among].argmax(1)]
        labels[: len(among)] = among
        self.files[name] = []
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True), 1):
            folder = self.root / name / folder_of(int(label))
            folder.mkdir(parents=True, exist_ok=True)
            self.files[name].append(folder / f"ILSVRC2012_val_{number:08d}.png")
            Image.fromarray(image).save(self.files[name][-1], compress_level=0)
        self.logits[name], self.labels[name] = logits, labels

    def expected(self, *names: str, temperature: float = 1.0) -> dict[str, Any]:
        """Rows by the rule that tests/evaluation compares with results by hand."""
        found = {}
        for name in names:
            outputs = self.logits[name], self.labels[name]
            row = score(SHOWN[name], *outputs, among=SHIFTED.get(name), temperature=temperature)
            found[row.name] = pytest.approx(asdict(row), abs=1e-5)
        return found


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return Sets(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture(autouse=True)
def shared_features(own_cache: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of the same model and images are computed by the first test that needs them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(sets.root / "cache"))


def rows(vit: Vit, model: Path, *args: object) -> dict[str, dict]:
    done = vit("imagenet", model, *args, "--json", "--num-workers", 0)
    assert done.status == 0, done.err
    return {row["name"]: row for row in json.loads(done.out)["rows"]}


@pytest.fixture
def real(sets: Sets, tmp_path: Path) -> tuple[Path, dict]:
    """real.json of the miniature, and the row that is expected of it."""
    labels: list[list[int]] = []
    hits = []
    for row, logits in enumerate(sets.logits["val"]):
        answer = int(logits.argmax())
        kind = row % 4
        wrong = (answer + 1) % 1000
        labels.append([[], [wrong], [wrong, answer], [answer]][kind])
        if kind:
            hits.append(kind > 1)
    file = tmp_path / "real.json"
    file.write_text(json.dumps(labels))
    accuracy = pytest.approx(np.mean(hits))
    return file, {
        "name": "ReaL", "images": len(hits), "acc1": accuracy, "acc5": None, "ece": None
    }  # fmt: skip


def options(sets: Sets) -> list[object]:
    return [part for name in sets.files for part in (f"--{name}", sets.root / name)]


def test_all_sets_are_scored(vit: Vit, sets: Sets, real: tuple[Path, dict]) -> None:
    found = rows(vit, sets.model, *options(sets), "--real", real[0])
    assert list(found) == ["val", "ReaL", "V2", "A", "R"]
    assert found == {**sets.expected(*SHOWN), "ReaL": real[1]}
    assert 0.2 < found["val"]["acc1"] < 0.5 < found["A"]["acc1"]  # no trivial figures


def test_a_model_with_ids_as_class_names_needs_no_val_and_no_order(
    vit: Vit, sets: Sets, tmp_path: Path, real: tuple[Path, dict]
) -> None:
    order = np.random.default_rng(1).permutation(1000)
    model: Any = load_pretrained(sets.model)[0]
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight[order])
        model.head.bias.copy_(model.head.bias[order])
    mixed = save(tmp_path / "mixed", model, [IDS[k] for k in order])
    assert rows(vit, mixed, *options(sets)[2:]) == sets.expected("v2", "a", "r")
    both = rows(vit, mixed, "--val", sets.root / "val", "--real", real[0])
    assert both == {**sets.expected("val"), "ReaL": real[1]}


def test_logits_follow_other_names_of_the_classes(vit: Vit, sets: Sets, tmp_path: Path) -> None:
    names = imagenet_classes()
    order = sorted(range(1000), key=names.__getitem__)  # as a folder per name is read
    model: Any = load_pretrained(sets.model)[0]
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight[order])
        model.head.bias.copy_(model.head.bias[order])
    mixed = save(tmp_path / "mixed", model, [names[k] for k in order])
    assert rows(vit, mixed, *options(sets)) == sets.expected("val", "v2", "a", "r")
    assert rows(vit, mixed, "--v2", sets.root / "v2") == sets.expected("v2")
    pictures: Any = SimpleNamespace(num_classes=1000, classes=[names[k] for k in order])
    assert output_names(pictures, IDS[::-1]) == [IDS[k] for k in order]
    foreign = save(tmp_path / "foreign", model, [f"my {k}" for k in range(1000)])
    for args in (options(sets), ("--v2", sets.root / "v2")):
        done = vit("imagenet", foreign, *args)
        assert done.status == 2 and "'my 0', 'my 1', 'my 2' and 997 more, are not" in done.err


def test_the_temperature_of_val_is_used_for_the_others(vit: Vit, sets: Sets) -> None:
    document = json.loads(
        vit("imagenet", sets.model, *options(sets), "--temperature", "--json").out
    )
    temperature = document["temperature"]
    best = fit_temperature(*map(torch.from_numpy, (sets.logits["val"], sets.labels["val"])))
    assert temperature == pytest.approx(best, rel=1e-3) and abs(temperature - 1) > 0.1
    found = {row["name"]: row for row in document["rows"]}
    shifted = sets.expected("v2", "a", "r", temperature=temperature)
    assert found == {**sets.expected("val"), **shifted}


def test_an_unreadable_image_is_left_out_of_real_too(
    vit: Vit, sets: Sets, real: tuple[Path, dict]
) -> None:
    victim = sets.files["val"][3]  # of those that ReaL counts, and right
    content = victim.read_bytes()
    args = ("--val", sets.root / "val", "--real", real[0], "--on-error", "skip")
    try:
        victim.write_bytes(b"")
        found = rows(vit, sets.model, *args)
    finally:
        victim.write_bytes(content)
    count, hits = real[1]["images"], real[1]["acc1"].expected * real[1]["images"]
    assert found["val"]["images"] == 1399 and found["ReaL"]["images"] == count - 1
    assert found["ReaL"]["acc1"] == pytest.approx((hits - 1) / (count - 1))


def test_mistakes_are_one_line(vit: Vit, sets: Sets, tmp_path: Path) -> None:
    val = sets.root / "val"
    small = save(tmp_path / "small", tiny(10), None)
    other = save(tmp_path / "other", tiny(1000), ["n99999999", *IDS[1:]])
    for args, message in (
        ((sets.model,), "nothing to evaluate"),
        ((sets.model, "--v2", val, "--real", "real.json"), "--real needs --val"),
        ((sets.model, "--v2", val, "--temperature"), "--temperature needs --val"),
        ((sets.model, "--val", val, "--real", "none.json"), "cannot read the ReaL labels"),
        ((sets.model, "--val", tmp_path / "none"), "no folder"),
        ((small, "--v2", sets.root / "v2"), "has 10 classes; these sets need ImageNet's 1000"),
        ((other, "--a", sets.root / "a"), "'n99999999', 'n01443537', 'n01484850' and 997 more"),
        ((sets.model, "--v2", val), "has classes that the model lacks"),
    ):
        done = vit("imagenet", *args)
        assert done.status == 2 and done.out == "", args
        assert message in done.err.splitlines()[-1], done.err
