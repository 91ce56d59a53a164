"""vit.load: a trained model with only torch, Pillow and safetensors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.errors import UserError
from vit.extensions.formats.class_names import imagenet_classes
from vit.extensions.formats.convert import convert
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

CLASSES = ["cat", "dog", "hen"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A model with random weights and distinct outputs."""
    torch.manual_seed(0)
    model = vit.create_model(
        "vit_ti16", num_classes=3, image_size=32, depth=1, width=24, mlp_dim=48, num_heads=2
    )
    torch.nn.init.normal_(model.head.weight)
    preprocess = Preprocess(image_size=(32, 32), crop_fraction=0.875)
    save_native(
        tmp_path / "model", model, classes=CLASSES, preprocess=preprocess.to_dict(), extra={}
    )
    return tmp_path


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (50, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a picture.png")
    return tmp_path / "a picture.png"


def test_paths_pictures_and_arrays_give_the_same_answer(saved: Path, picture: Path) -> None:
    classifier = vit.load(saved)
    image = Image.open(picture)
    first, second, third = classifier.predict([picture, image, np.asarray(image)])
    assert first == second == third
    assert sorted(first.classes) == CLASSES
    assert first.probabilities == sorted(first.probabilities, reverse=True)
    assert sum(first.probabilities) == pytest.approx(1)


def test_the_probabilities_are_those_of_the_steps_done_by_hand(saved: Path, picture: Path) -> None:
    from torchvision.transforms import v2

    classifier = vit.load(saved / "model")
    steps = v2.Compose([v2.Resize(37), v2.CenterCrop(32), v2.PILToTensor()])
    pixels = steps(Image.open(picture)).float() / 255
    logits = classifier.model(((pixels - 0.5) / 0.5)[None]).detach()
    expected = dict(zip(CLASSES, logits.softmax(-1)[0].tolist(), strict=True))
    found = classifier.predict(picture)[0]
    for name, probability in zip(found.classes, found.probabilities, strict=True):
        assert probability == pytest.approx(expected[name], abs=1e-5)


def test_a_folder_a_generator_and_a_call_are_answered(saved: Path, picture: Path) -> None:
    classifier, folder = vit.load(saved), picture.parent / "folder"
    (folder / "sub").mkdir(parents=True)
    for name in ("b.png", "sub/a.png"):
        (folder / name).write_bytes(picture.read_bytes())
    (folder / "notes.txt").touch()
    assert classifier(picture) == classifier.predict(picture)
    two = classifier.predict([picture, picture])
    assert classifier(str(folder)) == classifier(p for p in [picture, picture]) == two
    assert repr(classifier).startswith("Classifier(VisionTransformer, 3 classes: ")
    with pytest.raises(UserError, match="no pictures in"):
        classifier(saved / "model")


def test_top_limits_the_classes(saved: Path, picture: Path) -> None:
    classifier = vit.load(saved)
    assert len(classifier.predict(picture, top=2)[0].classes) == 2
    with pytest.raises(UserError, match="top=0 must be at least 1"):
        classifier.predict(picture, top=0)


def test_the_batch_size_does_not_change_the_answers(saved: Path, picture: Path) -> None:
    classifier = vit.load(saved)
    images = [Image.open(picture).rotate(90 * i, expand=True) for i in range(4)]
    whole, parts = classifier.predict(images), classifier.predict(images, batch_size=3)
    for a, b in zip(whole, parts, strict=True):
        assert a.classes == b.classes
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-5)


def test_it_works_where_training_packages_are_absent(saved: Path, picture: Path) -> None:
    code = f"""
import sys
for name in ("lightning", "torchvision", "torchmetrics", "matplotlib", "sklearn", "rich",
             "jsonargparse", "yaml", "numpy"):
    sys.modules[name] = None
import vit, json
from PIL import Image
classifier = vit.load({str(saved)!r})
classifier.predict(Image.new("I;16", (9, 9)))
print(json.dumps(classifier.predict({str(picture)!r})[0].probabilities))
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == vit.load(saved).predict(picture)[0].probabilities


def test_a_file_of_another_library_answers_as_ours(
    tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"image_size": 32, "depth": 1, "width": 48, "mlp_dim": 96, "num_heads": 3}
    torch.manual_seed(0)
    model = vit.create_model("vit_ti16", num_classes=3, **sizes)
    torch.nn.init.normal_(model.head.weight)
    # What a file of Google's implies about images; it holds no names.
    preprocess = Preprocess(image_size=(32, 32), resize="squash", crop_fraction=1.0)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs.npz"
    save_native(ours, model, classes=CLASSES, preprocess=preprocess.to_dict(), extra={})
    convert(ours, theirs, "google")
    expected = vit.load(ours).predict(picture)[0]
    capsys.readouterr()
    answer = vit.load(theirs).predict(picture)[0]
    assert answer.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
    assert answer.classes == [str(CLASSES.index(name)) for name in expected.classes]
    assert "numbers stand for them" in capsys.readouterr().err


def test_weights_that_cannot_name_anything_are_refused(tmp_path: Path, saved: Path) -> None:
    sizes = {"image_size": 32, "depth": 1, "width": 192, "mlp_dim": 768, "num_heads": 3}
    fresh = vit.create_model("vit_ti16", num_classes=3, **sizes)
    encoder = vit.create_model("vit_ti16", num_classes=0, **sizes)
    trained = vit.create_model("vit_ti16", num_classes=3, **sizes)
    torch.nn.init.normal_(trained.head.weight)
    refusals = {
        "has a head of zeros": fresh,
        "is an encoder without classes": encoder,
        "how images are prepared is not known .*config.json": trained,
    }
    for reason, model in refusals.items():
        file = tmp_path / f"{reason[:12]}.pth"
        torch.save(model.state_dict(), file)
        with pytest.raises(UserError, match=reason) as refusal:
            vit.load(file)
        assert "\n" not in str(refusal.value)
        remedy = f"vit fit -c probe --data.root LABELLED --model.pretrained '{file}'"
        assert (remedy in str(refusal.value)) == (model is not trained)


def test_a_thousand_outputs_are_taken_as_imagenets_and_that_is_said(
    tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vit.create_model("vit_ti16", image_size=32, depth=1, num_classes=1000)
    torch.nn.init.normal_(model.head.weight)
    torch.save({"model": model.state_dict()}, tmp_path / "my.pth")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architecture": "vit_tiny_patch16_224",
                "num_classes": 1000,
                "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3},
            }
        )
    )
    [best] = vit.load(tmp_path / "my.pth").predict(picture, top=1)
    assert best.classes[0] in imagenet_classes()
    assert "1,000 outputs are taken as ImageNet's" in capsys.readouterr().err


def test_a_fact_that_is_missing_is_given_to_convert(tmp_path: Path) -> None:
    """vit.load has no options for it."""
    model = vit.create_model("vit_ti16", num_classes=3, image_size=32, depth=1, activation="gelu")
    torch.nn.init.normal_(model.head.weight)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    steps = Preprocess(image_size=(32, 32), crop_fraction=1.0).to_dict()
    save_native(ours, model, classes=CLASSES, preprocess=steps, extra={})
    convert(ours, theirs, "huggingface")
    (theirs / "config.json").unlink()
    with pytest.raises(
        UserError, match=r"give num_heads=\.\.\..*, by --set to `vit convert .*, and load DIR"
    ):
        vit.load(theirs)
    convert(theirs, tmp_path / "given", "native", num_heads=3, layer_norm_eps=1e-6)
    expected = vit.load(ours).preprocess.changed(crop_rounding="floor")
    assert vit.load(tmp_path / "given").preprocess == expected


def test_a_folder_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no weights; name one file, or a folder with"):
        vit.load(tmp_path)


ANSWERED: dict[str, dict[str, Any]] = {
    "yes or no": {"problem_type": "multi_label_classification"},
    "threshold": {"label_thresholds": [0.25]},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one": ({}, r"has one output, which softmax makes 100 %"),
    "regression": ({"problem_type": "regression"}, "is a regression, its outputs are numbers"),
    "three": ({"problem_type": "regression", "num_labels": 3}, r"is a regression"),
}


def hugging_face(folder: Path, values: dict[str, Any]) -> Path:
    transformers = pytest.importorskip("transformers")
    values = {"num_labels": 1, **values}
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=8, **values,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ANSWERED)
def test_one_output_is_a_sigmoid(kind: str, tmp_path: Path, picture: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = hugging_face(tmp_path / "m", ANSWERED[kind])
    [answer] = vit.load(folder).predict(picture)
    model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    pixels = transformers.ViTImageProcessor.from_pretrained(folder)(
        Image.open(picture).convert("RGB"), return_tensors="pt"
    )
    expected = model(**pixels).logits.sigmoid().item()
    assert answer.probabilities == pytest.approx([expected], abs=2e-3) and 0.3 < expected < 0.9
    assert answer.labels == (["0"] if expected > (0.25 if kind == "threshold" else 0.5) else [])


@pytest.mark.parametrize("kind", REFUSED)
def test_one_output_without_a_word_on_it_and_a_regression_are_refused(
    kind: str, tmp_path: Path
) -> None:
    values, reason = REFUSED[kind]
    folder = hugging_face(tmp_path / "m", values)
    for layout in ("native", "huggingface"):
        convert(folder, tmp_path / layout, layout)
    for path in (folder, tmp_path / "native", tmp_path / "huggingface"):
        for use in (vit.load, lambda path: vit.export(path, tmp_path / "m.onnx")):
            with pytest.raises(UserError, match=reason):
                use(path)
    notes = convert(folder, tmp_path / "timm", "timm").notes
    assert any("no word for a regression" in note for note in notes) == ("regression" in reason)
    for outputs in (0, 1):  # the weights themselves are free
        assert (
            vit.create_model(pretrained=folder, num_classes=outputs).config.num_classes == outputs
        )
