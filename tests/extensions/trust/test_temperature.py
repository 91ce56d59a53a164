"""The temperature of a run goes wherever its probabilities are shown."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import vit as package
from tests.command import CLASSES, TINY, Vit, coloured
from tests.extensions.trust.conftest import with_splits
from vit.cli.main import main
from vit.extensions.formats.convert import convert
from vit.extensions.formats.publish import push_to_hub
from vit.extensions.inspection.looks import look
from vit.extensions.inspection.subject import load_subject, open_photo
from vit.weights.report import LoadReport
from vit.weights.weight_file import read_json

ARCHITECTURE = (
    "--model.architecture={patch_size: 8, width: 16, depth: 1, mlp_dim: 32, num_heads: 1, "
    "activation: gelu, layer_norm_eps: 1e-6}"
)


def fitted(home: Path, root: Path, *more: str) -> None:
    """The run `home`/run on pictures of its own."""
    options = ("-c", "cifar10", "--data", str(root), *TINY[1:], ARCHITECTURE, "--steps=9", *more)
    assert main(["fit", *options, f"--run-dir={home / 'run'}"]) == 0
    about = read_json(home / "run/model/config.json")
    assert abs(about["extra"]["temperature"] - 1) > 0.2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has a temperature."""
    home = tmp_path_factory.mktemp("finished")
    fitted(home, with_splits(coloured(home / "photos"), home / "split"))
    return home


@pytest.fixture
def picture(vit: Vit, finished: Path) -> Path:
    """One of test; a copy of the run is in the folder run."""
    shutil.copytree(finished / "run", "run")
    return sorted((finished / "split" / "test").rglob("*.jpg"))[0]


def pixels(picture: Path) -> Tensor:
    steps = package.load("run").preprocess
    return steps.normalize(steps(Image.open(picture))[None])


def of_timm(folder: Path, images: Tensor) -> Tensor:
    timm = pytest.importorskip("timm")
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(images)


def of_transformers(folder: Path, images: Tensor) -> Tensor:
    transformers = pytest.importorskip("transformers")
    return transformers.ViTForImageClassification.from_pretrained(folder).eval()(images).logits


def of_torchvision(file: Path, images: Tensor) -> Tensor:
    from torchvision.models.vision_transformer import VisionTransformer

    peer = VisionTransformer(16, 8, 1, 1, 16, 32, num_classes=3)
    peer.load_state_dict(torch.load(file, weights_only=True))
    return peer.eval()(images)


PEERS = {
    "timm": ("timm", of_timm),
    "huggingface": ("hf", of_transformers),
    "torchvision": ("tv.pth", of_torchvision),
}


def test_every_way_to_ask_a_run_gives_the_same_probabilities(
    vit: Vit, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, Any] = {}

    def told(name: str, pairs: Any) -> None:
        found = dict(pairs)
        answers[name] = [found[label] for label in CLASSES]

    row = json.loads(vit("classify", "run", picture, "--json").out)[0]["top"]
    told("classify", ((entry["class"], entry["probability"]) for entry in row))
    published: dict[str, Path] = {}
    hub = SimpleNamespace(
        create_repo=lambda *_, **__: None,
        file_exists=lambda *_: False,
        upload_folder=lambda folder_path, **_: published.update(folder=folder_path),
    )
    monkeypatch.setattr(
        "vit.extensions.formats.publish.needed", lambda *_: SimpleNamespace(HfApi=lambda: hub)
    )
    push_to_hub("run", "me/photos")
    exported = package.export("run", "run.onnx", overwrite=True)
    assert exported.proof.passed
    convert("run", "native", "native")
    for path in (
        "run", published["folder"], "run/checkpoints/best.ckpt", "native", "run.onnx"
    ):  # fmt: skip
        [found] = package.load(path).predict(picture)
        told(str(path), zip(found.classes, found.probabilities, strict=True))
    images = pixels(picture)
    for to, (name, peer) in PEERS.items():
        done = convert("run", name, to)
        assert "divided by the temperature" in done.notes[0]
        with torch.no_grad():
            told(f"{to}, there", zip(CLASSES, peer(Path(name), images)[0].softmax(0), strict=True))
        if to != "torchvision":  # its files have no classes
            [found] = package.load(name).predict(picture)
            told(f"{to}, here", zip(found.classes, found.probabilities, strict=True))
    for path in ("run", "run/checkpoints/best.ckpt"):
        module = package.ImageClassifier.load_from_checkpoint(path).eval()
        with torch.no_grad():
            probabilities = module.predict_step((images,), 0)[0]
        told(f"load_from_checkpoint({path})", zip(CLASSES, probabilities, strict=True))
    assert vit("predict", "run", "--out=rows.csv").status == 0
    head, *rows = Path("rows.csv").read_text(encoding="utf-8").splitlines()
    row = next(row for row in rows if picture.name in row)
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    ranks = ["", "_2", "_3"]
    told("predict", ((cells[f"predicted{k}"], float(cells[f"probability{k}"])) for k in ranks))
    expected = answers.pop("classify")
    raw = package.load("run", raw=True).predict(picture)[0]
    assert abs(max(raw.probabilities) - max(expected)) > 0.01
    for name, values in answers.items():
        assert [float(value) for value in values] == pytest.approx(expected, abs=1e-5), name

    subject = load_subject("run")
    seen = look(subject, open_photo(subject, picture), [0], [0], None)
    assert seen.answer == f"{CLASSES[expected.index(max(expected))]} {max(expected):.1%}"


def test_compare_and_convert_take_the_temperature_or_leave_it_out(vit: Vit, picture: Path) -> None:
    assert "divided by the temperature" in vit("convert", "run", "timm", "--to", "timm").err
    left_out = vit("convert", "run", "raw", "--to", "timm", "--temperature", "none")
    assert "temperature" not in left_out.err
    apart = {}
    for name in ("timm", "raw"):
        for option in ("keep", "none"):
            done = vit("convert", "run", name, "--compare", "--json", "--temperature", option)
            apart[name, option] = json.loads(done.out)["relative"]
    assert apart["timm", "keep"] < 1e-6 > apart["raw", "none"]
    assert apart["timm", "none"] > 1e-2 < apart["raw", "keep"]
    raw = package.load("run", raw=True).predict(picture)[0].probabilities
    vit("convert", "run", "native", "--to", "native", "--temperature=none")
    for name in ("raw", "native"):
        assert package.load(name).predict(picture)[0].probabilities == pytest.approx(raw, abs=1e-6)


def test_a_checkpoint_of_other_weights_has_no_temperature(vit: Vit, picture: Path) -> None:
    checkpoint = Path("run/checkpoints/best.ckpt")
    assert "temperature" not in vit("classify", checkpoint, picture).err
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"]["model.head.bias"] += 1
    torch.save(content, "run/checkpoints/other.ckpt")
    checkpoint.rename("moved.ckpt")
    for path in ("run/checkpoints/other.ckpt", "moved.ckpt"):
        done = vit("classify", path, picture)
        assert "note: no temperature was fitted to the probabilities of this" in done.err, path
        assert package.load(path).temperature == 1


def test_raw_and_averaged_weights_are_chosen_by_an_option(vit: Vit, photos: Path) -> None:
    ema = "--trainer.callbacks=[{class_path: vit.EMA, init_args: {decay: 0.9}}]"
    root = with_splits(photos, Path("split"))
    fitted(Path(), root, ema)
    picture = sorted((root / "test").rglob("*.jpg"))[0]
    path = Path("run/checkpoints/best.ckpt")
    content = torch.load(path, weights_only=True)
    states = {"average": content["state_dict"], "raw": content["current_model_state"]}
    for kind, state in states.items():
        reports: list[LoadReport] = []
        model = package.create_model(pretrained=path, weights=kind, report=reports.append)  # pyright: ignore
        assert all(torch.equal(state[f"model.{k}"], v) for k, v in model.state_dict().items())
        other = {"average": "current_model_state", "raw": "state_dict"}[kind]
        assert list(reports[0].left_out) == [other]
        averaged = "note: these weights are the running average of the training's"
        assert (averaged in reports[0].lines()) == (kind == "average")
        assert (reports[0].temperature is not None) == (kind == "average")
    assert not torch.equal(*(state["model.head.bias"] for state in states.values()))
    assert package.load(path).predict(picture) == package.load("run").predict(picture)
    refused = vit("convert", "run", "raw", "--to", "native", "--weights", "raw")
    assert refused.status == 2 and "has no raw weights" in refused.err
    assert vit("convert", path, "raw", "--to", "native", "--weights", "raw").status == 0
    raw = package.create_model(pretrained="raw").state_dict()
    assert all(torch.equal(states["raw"][f"model.{name}"], v) for name, v in raw.items())
    begun = vit(
        "fit", "-c", "cifar10", "--data", "split", *TINY[1:], ARCHITECTURE, "--pretrained", path,
        "--model.weights=raw", "--steps=1", "--run-dir=next",
    )  # fmt: skip
    assert begun.status == 0, begun.err
    assert "left out: state_dict, the average of the weights; weights=average takes" in begun.err
