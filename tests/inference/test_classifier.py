"""vit.load: a trained model with only torch, Pillow and safetensors."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.checkpoints.native import save_native
from vit.data.preprocess import Preprocess
from vit.errors import UserError
from vit.models import matmul

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


def test_top_limits_the_classes(saved: Path, picture: Path) -> None:
    assert len(vit.load(saved).predict(picture, top=2)[0].classes) == 2


def test_the_batch_size_does_not_change_the_answers(saved: Path, picture: Path) -> None:
    classifier = vit.load(saved)
    images = [Image.open(picture).rotate(90 * i, expand=True) for i in range(4)]
    whole, parts = classifier.predict(images), classifier.predict(images, batch_size=3)
    for a, b in zip(whole, parts, strict=True):
        assert a.classes == b.classes
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-5)


@pytest.mark.skipif(not matmul.works(torch.float32), reason="no oneDNN")
def test_weights_are_packed_for_more_than_a_batch(saved: Path, picture: Path) -> None:
    classifier = vit.load(saved)
    layers = {m for m in classifier.model.modules() if type(m) is torch.nn.Linear}
    classifier.predict([picture] * 3, batch_size=3)
    assert not layers & set(matmul._PACKED)
    classifier.predict([picture] * 4, batch_size=3)
    assert layers <= set(matmul._PACKED)


def test_it_works_where_training_packages_are_absent(saved: Path, picture: Path) -> None:
    code = f"""
import sys
for name in ("lightning", "torchvision", "torchmetrics", "matplotlib", "sklearn", "rich",
             "jsonargparse", "yaml", "numpy"):
    sys.modules[name] = None
import vit, json
print(json.dumps(vit.load({str(saved)!r}).predict({str(picture)!r})[0].probabilities))
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == vit.load(saved).predict(picture)[0].probabilities


def test_a_folder_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is neither a run nor a model directory"):
        vit.load(tmp_path)


def test_an_unfinished_run_names_the_resume_command(tmp_path: Path) -> None:
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "config.yaml").write_text("")
    with pytest.raises(UserError, match=r"continue it: vit fit --run_dir '.*my run' --ckpt_path"):
        vit.load(tmp_path / "my run")


def test_no_classes_at_all_are_a_clear_error(saved: Path, picture: Path) -> None:
    with pytest.raises(UserError, match="top=0 must be at least 1"):
        vit.load(saved).predict(picture, top=0)
