"""Temperature and sets of a loaded model, and the file that is kept beside it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vit
from tests.command import saved
from vit.confidence import TRUST
from vit.errors import UserError
from vit.extensions.trust.trust import Trust
from vit.extensions.trust.unknown import References, all_scores
from vit.inference.answers import PredictOptions
from vit.weights.sealed import read_sealed, write_sealed

CLASSES = ["cat", "dog", "hen"]
MEASURED = Trust(
    measured_on="validation images",
    images=19,
    temperature=2.5,
    scores=torch.linspace(0, 0.9, 19, dtype=torch.float64),
)


def model(folder: Path, **extra: Any) -> Path:
    """A model directory with facts about its outputs."""
    return saved(folder, CLASSES, extra=extra)


def pictures(count: int) -> list[Image.Image]:
    random = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (count, 32, 32, 3), generator=random, dtype=torch.uint8)
    return [Image.fromarray(each.numpy()) for each in noise]


def test_the_file_comes_back_whole_of_its_weights_or_not_at_all(tmp_path: Path) -> None:
    folder = model(tmp_path)
    assert Trust.read(folder) is None
    MEASURED.write(folder)
    found = Trust.read(folder)
    assert found is not None and found.scores is not None and MEASURED.scores is not None
    assert found.scores.equal(MEASURED.scores)
    assert (found.measured_on, found.images) == ("validation images", 19)
    whole = (folder / TRUST).read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-9], b"{}"):
        (folder / TRUST).write_bytes(damaged)
        with pytest.raises(UserError, match=r"trust\.safetensors is damaged; delete it"):
            vit.load(folder).predict(pictures(1), coverage=0.8)
    (folder / TRUST).write_bytes(whole)
    saved(folder, [*CLASSES, "ibex"])
    assert Trust.read(folder) is None  # of the weights that lay there before


def test_probabilities_are_of_logits_over_the_temperature_unless_raw(tmp_path: Path) -> None:
    scaled, images = vit.load(model(tmp_path, temperature=2.5)), pictures(4)
    raw = vit.load(tmp_path, raw=True)
    pixels = torch.stack([scaled.preprocess(image) for image in images])
    logits, _ = raw.outputs(pixels)
    assert scaled.outputs(pixels)[0].equal(logits)
    torch.testing.assert_close(scaled.probabilities(images), (logits / 2.5).softmax(1))
    torch.testing.assert_close(raw.probabilities(images), logits.softmax(1))


@pytest.mark.parametrize("value", [0, -1, "2", None])
def test_a_temperature_that_is_none_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"temperature=.* must be more than 0"):
        vit.load(model(tmp_path, temperature=value))


def test_labels_are_the_same_with_and_without_temperature(tmp_path: Path) -> None:
    thresholds = [0.3, 0.9999, 0.02]
    extra = {"multilabel": True, "thresholds": thresholds, "temperature": 0.4}
    scaled = vit.load(model(tmp_path, **extra))
    raw = vit.load(tmp_path, raw=True)
    assert raw.thresholds == thresholds
    logits = torch.linspace(-12, 12, 240).view(80, 3)
    found, plain = (m.ranked(logits, None, PredictOptions(top=3)) for m in (scaled, raw))
    assert [set(f.labels or ()) for f in found] == [set(p.labels or ()) for p in plain]
    # 0.9999 at this temperature is 1 in float32, which no probability is above.
    assert any("dog" in (f.labels or ()) for f in found)
    with pytest.raises(UserError, match="coverage is for models with one label per image"):
        scaled.predict(pictures(1), coverage=0.9)


def test_sets_are_of_the_scores_that_were_measured(tmp_path: Path) -> None:
    folder = model(tmp_path, temperature=2.5)
    with pytest.raises(UserError, match=r"coverage=0.9 needs held-out images .* had a val"):
        vit.load(folder).predict(pictures(1), coverage=0.9)
    MEASURED.write(folder)
    classifier = vit.load(folder)
    images = pictures(5)
    for prediction, p in zip(
        classifier.predict(images, top=1, coverage=0.8),
        classifier.probabilities(images),
        strict=True,
    ):
        threshold = 0.9 * 15 / 18  # the 16th of 19 scores
        expected = [c for c in range(3) if p[p > p[c]].sum() <= threshold]
        assert prediction.set == [CLASSES[c] for c in sorted(expected, key=lambda c: -p[c])]
        assert len(prediction.classes) == 1
    whole, raw = (vit.load(folder, raw=raw).predict(images, coverage=0.8) for raw in (False, True))
    assert [answer.set for answer in whole] == [answer.set for answer in raw]
    with pytest.raises(UserError, match=r"coverage=0.99 needs at least 99 held-out images"):
        classifier.predict(images, coverage=0.99)
    assert json.loads((folder / "config.json").read_text())["extra"]["temperature"] == 2.5


def rewritten(folder: Path, change: Any) -> None:
    """The file with another text and other tensors, under a seal of its own."""
    tensors, text = read_sealed(folder / TRUST)
    about = json.loads(text)
    change(about, tensors)
    write_sealed(folder / TRUST, tensors, json.dumps(about))


def test_the_seal_covers_the_text(tmp_path: Path) -> None:
    MEASURED.write(model(tmp_path))
    whole = (tmp_path / TRUST).read_bytes()
    for before, after in ((b"2.5", b"7.5"), (b"validation", b"Validation")):
        assert whole.count(before) == 1
        (tmp_path / TRUST).write_bytes(whole.replace(before, after))
        with pytest.raises(UserError, match=r"trust\.safetensors is damaged; delete it"):
            vit.load(tmp_path).predict(pictures(1), unknown=0.5)


def of_unknown(folder: Path) -> None:
    """A file with references for features of 24 numbers."""
    features, labels = torch.randn(60, 24), torch.arange(60) % 3
    references = References.of(features, labels)
    usual = torch.stack(list(all_scores(torch.randn(19, 3), features[:19], references).values()))
    replace(MEASURED, unknown="energy", usual=usual, **vars(references)).write(folder)


CHANGES: dict[str, Any] = {
    "temperature": lambda about, tensors: about.update(temperature="2"),
    "images": lambda about, tensors: about.update(images=3),
    "score": lambda about, tensors: about.update(unknown="entropy"),
    "scores": lambda about, tensors: tensors.update(scores=torch.ones(19, 2)),
    "neighbours": lambda about, tensors: tensors.update(neighbours=torch.ones(4, 7)),
    "part": lambda about, tensors: tensors.pop("means"),
    "more": lambda about, tensors: about.update(colour=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_types_and_shapes_are_checked_under_a_right_seal(name: str, tmp_path: Path) -> None:
    of_unknown(model(tmp_path))
    assert vit.load(tmp_path).predict(pictures(1), unknown=0.5)[0].unknown in (True, False)
    rewritten(tmp_path, CHANGES[name])
    with pytest.raises(UserError, match=r"trust\.safetensors is damaged; delete it"):
        vit.load(tmp_path).predict(pictures(1), unknown=0.5)


def test_references_of_other_features_are_refused(tmp_path: Path) -> None:
    of_unknown(model(tmp_path))

    def narrower(about: Any, tensors: Any) -> None:
        tensors["neighbours"] = tensors["neighbours"][:, :20].contiguous()
        tensors["directions"] = tensors["directions"][:20].contiguous()

    rewritten(tmp_path, narrower)
    with pytest.raises(UserError, match="is of features of 20 numbers, and the model's have 24"):
        vit.load(tmp_path).predict(pictures(1), unknown=0.5)
