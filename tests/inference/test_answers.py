"""What a person asks of an answer and of a classifier, and the images that it takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vit
from vit.errors import UserError
from vit.inference.classifier import Classifier
from vit.preprocessing import Preprocess
from vit.weights.native import save_native


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    torch.manual_seed(0)
    model = vit.create_model("vit_ti16", num_classes=3, image_size=32)
    torch.nn.init.normal_(model.head.weight)
    return Classifier(model, ["bird", "cat", "ship"], Preprocess(image_size=(32, 32)))


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 36, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_an_answer_has_a_label_and_reads_as_text(
    classifier: Classifier, picture: Image.Image
) -> None:
    [answer] = classifier(picture, top=2)
    assert answer.label == answer.classes[0] and answer.probability == answer.probabilities[0]
    assert answer.top == list(zip(answer.classes, answer.probabilities, strict=True))
    first, second = answer.top
    assert str(answer) == f"{first[0]} {first[1]:.1%}, {second[0]} {second[1]:.1%}"


def test_features_are_the_input_of_the_head(classifier: Classifier, picture: Image.Image) -> None:
    features = classifier.features([picture] * 3, batch_size=2)
    assert features.shape == (3, 192) and features.dtype == torch.float32
    with torch.no_grad():
        logits = classifier.model.get_classifier()(features[:1])
        pixels = classifier.preprocess(picture)[None]
        expected = classifier.model(classifier.preprocess.normalize(pixels))
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("scale", [1, 255], ids=["uint8", "float"])
def test_tensors_are_images(classifier: Classifier, picture: Image.Image, scale: int) -> None:
    tensor = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)
    images: Tensor = tensor if scale == 1 else tensor / scale
    expected = classifier(picture)[0]
    assert classifier(images) == [expected]
    answers = classifier(torch.stack([images, images]))
    answers += classifier([picture, images, np.asarray(picture)])
    assert len(answers) == 5 and {answer.label for answer in answers} == {expected.label}
    for answer in answers:
        assert answer.probabilities == pytest.approx(expected.probabilities, rel=1e-4)


@pytest.mark.parametrize(
    "tensor",
    [torch.full((3, 8, 8), 2.0), torch.zeros(3, 8, 8, dtype=torch.int64), torch.zeros(8, 8)],
)
def test_another_tensor_is_refused(classifier: Classifier, tensor: Tensor) -> None:
    with pytest.raises(UserError, match=r"c h w, uint8 or in \[0, 1\], not torch"):
        classifier(tensor)


def test_a_model_is_loaded_to_a_device(classifier: Classifier, tmp_path: Path) -> None:
    described = {"preprocess": classifier.preprocess.to_dict(), "classes": classifier.classes}
    save_native(tmp_path / "model", classifier.model, **described, extra={})
    loaded = vit.load(tmp_path / "model", device="meta")
    assert {p.device.type for p in loaded.model.parameters()} == {"meta"}
