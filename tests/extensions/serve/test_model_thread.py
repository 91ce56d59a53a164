"""Predictions of the model's thread are those of a classifier that is called with one image."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.command import CLASSES, saved
from vit.confidence import energy, set_scores
from vit.data.decode import open_image
from vit.errors import UserError
from vit.extensions.serve.model_thread import ModelThread
from vit.extensions.trust.trust import Trust
from vit.inference.answers import PredictOptions
from vit.inference.classifier import Classifier
from vit.preprocessing import Preprocess
from vit.weights.native import save_native


def model(folder: Path, name: str) -> Path:
    """A network of two kinds for 32 x 32 pixels, and what its val would have measured."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"num_classes": 3, "image_size": 32}
    if name == "vit_ti16":
        sizes |= {"patch_size": 8, "depth": 3, "width": 48, "num_heads": 3, "mlp_dim": 96}
    net: Any = vit.create_model(name, **sizes)
    for parameter in net.head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    steps = Preprocess(image_size=(32, 32), crop_fraction=0.875, interpolation="bicubic")
    save_native(
        folder, net, classes=CLASSES, preprocess=steps.to_dict(), extra={"temperature": 1.7}
    )
    return folder


def images(count: int, seed: int) -> list[Image.Image]:
    values = np.random.default_rng(seed)
    sizes = values.integers(20, 90, (count, 2))
    pixels = [values.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    return [Image.fromarray(each) for each in pixels]


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("name", ("vit_ti16", "bit_r50x1"))
def test_one_image_is_equal_to_the_bit(tmp_path: Path, name: str, threads: int) -> None:
    classifier = vit.load(model(tmp_path, name))
    pictures, options = images(12, seed=threads), PredictOptions(top=3).of(classifier)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = [classifier.answers([image], options)[0] for image in pictures]
    finally:
        torch.set_num_threads(before)
    thread = ModelThread(classifier, threads=threads)
    thread.warm_up()
    # Decoded and resized by three threads at the same time, in another order.
    order = random.Random(0).sample(range(12), 12)
    with ThreadPoolExecutor(3, initializer=torch.set_num_threads, initargs=(1,)) as readers:
        cut = readers.map(lambda i: classifier.preprocess(open_image(pictures[i])), order)
        futures = [thread.predict(pixels, options) for pixels in cut]
    for i, future in zip(order, futures, strict=True):
        answer = future.result()
        assert answer.probabilities == expected[i].probabilities, i
        assert answer.classes == expected[i].classes


def test_batches_are_equal_within_rounding(tmp_path: Path) -> None:
    classifier = vit.load(model(tmp_path, "vit_ti16"))
    options = PredictOptions(top=3).of(classifier)
    sizes: list[int] = []
    outputs = classifier.outputs

    def counted(pixels: torch.Tensor, **asked: bool) -> Any:
        sizes.append(len(pixels))
        return outputs(pixels, **asked)

    classifier.outputs = counted  # type: ignore[method-assign]
    thread = ModelThread(classifier, batch=4, wait=0.2)
    pictures = images(11, seed=5)
    futures = [thread.predict(classifier.preprocess(image), options) for image in pictures]
    answers = [future.result() for future in futures]
    assert sizes == [4, 4, 3]
    for image, answer in zip(pictures, answers, strict=True):
        alone = classifier.answers([image], options)[0]
        np.testing.assert_allclose(
            [answer.probabilities[answer.classes.index(name)] for name in CLASSES],
            [alone.probabilities[alone.classes.index(name)] for name in CLASSES],
            atol=1e-5,
        )


def test_each_image_of_a_batch_has_its_options(tmp_path: Path) -> None:
    classifier = vit.load(model(tmp_path, "vit_ti16"))
    measure(classifier, images(200, seed=3)).write(tmp_path)
    asked = [{"top": 1}, {"top": 3, "numbers": {"coverage": 0.8}}, {"numbers": {"unknown": 0.5}}]
    options = [PredictOptions(**each).of(classifier) for each in asked]
    thread = ModelThread(classifier, batch=30, wait=0.3)
    pictures = images(30, seed=4)
    futures = [
        thread.predict(classifier.preprocess(image), options[i % 3])
        for i, image in enumerate(pictures)
    ]
    different = 0
    for i, (image, future) in enumerate(zip(pictures, futures, strict=True)):
        alone, answer = classifier.answers([image], options[i % 3])[0], future.result()
        assert (answer.classes, answer.set) == (alone.classes, alone.set)
        assert answer.unknown is alone.unknown
        different += bool(answer.unknown)
    assert 0 < different < 10  # of the ten that are asked


def measure(classifier: Classifier, pictures: list[Image.Image]) -> Trust:
    """What a run would have measured on held-out images with these labels."""
    logits, _ = classifier.outputs(torch.stack([classifier.preprocess(each) for each in pictures]))
    labels = torch.randint(3, (len(pictures),), generator=torch.Generator().manual_seed(0))
    scores = set_scores(classifier.activated(logits)).gather(1, labels[:, None])[:, 0]
    return Trust(
        measured_on="val",
        images=len(pictures),
        temperature=classifier.temperature,
        scores=scores.double().sort().values,
        usual=energy(logits)[None].float().sort().values,
    )


def test_an_error_of_the_model_reaches_all_images_of_the_batch(tmp_path: Path) -> None:
    classifier = vit.load(saved(tmp_path))
    torch.nn.init.constant_(classifier.model.head.weight, torch.nan)  # type: ignore[union-attr]
    thread, options = ModelThread(classifier, batch=2, wait=0.2), PredictOptions().of(classifier)
    pixels = torch.zeros(3, 16, 16, dtype=torch.uint8)
    for future in [thread.predict(pixels, options) for _ in range(2)]:
        with pytest.raises(UserError, match="not finite"):
            future.result()


def test_an_image_without_an_answer_leaves_the_others_theirs(tmp_path: Path) -> None:
    classifier = vit.load(saved(tmp_path))
    outputs = classifier.outputs

    def overflowing(pixels: torch.Tensor, **asked: bool) -> Any:
        logits, features = outputs(pixels, **asked)
        change = torch.zeros(len(logits), 1).index_fill(0, torch.tensor(1), torch.inf)
        return logits + change, features

    classifier.outputs = overflowing  # type: ignore[method-assign]
    thread, options = ModelThread(classifier, batch=3, wait=0.2), PredictOptions().of(classifier)
    pixels = torch.zeros(3, 16, 16, dtype=torch.uint8)
    first, second, third = [thread.predict(pixels, options) for _ in range(3)]
    with pytest.raises(UserError, match="not finite"):
        second.result()
    assert first.result().label == third.result().label


def test_a_cancelled_image_is_left_out(tmp_path: Path) -> None:
    classifier = vit.load(saved(tmp_path))
    thread, options = ModelThread(classifier), PredictOptions().of(classifier)
    sizes: list[int] = []
    outputs = classifier.outputs
    classifier.outputs = lambda pixels, **asked: (  # type: ignore[method-assign]
        sizes.append(len(pixels)) or outputs(pixels, **asked)
    )
    gate = threading.Event()
    thread.thread.submit(gate.wait)
    pixels = torch.zeros(3, 16, 16, dtype=torch.uint8)
    futures = [thread.predict(pixels, options) for _ in range(3)]
    assert futures[1].cancel()
    gate.set()
    assert [future.result().label for future in (futures[0], futures[2])]
    assert sizes == [1, 1]
