"""How often a fit passes an image through the network."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tests.command import TINY, Vit, parts, saved
from vit.models.embedding import PatchEmbed


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """How often each image, as it is evaluated, went through a network; without the pictures that
    the report draws of errors."""
    monkeypatch.setattr("vit.extensions.inspection.looks.glances", lambda *_: None)
    counts: Counter[int] = Counter()

    def count(module: nn.Module, inputs: Any) -> None:
        if isinstance(module, PatchEmbed) and not module.training:
            images = inputs[0].detach().numpy()
            counts.update(hash(image.tobytes()) for image in images)

    hook = register_module_forward_pre_hook(count)
    yield counts
    hook.remove()


OPTIONS = ("--data.batch_size=8", "--data.loading.num_workers=0", "--trainer.precision=32-true")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_probe_passes_each_image_once_and_val_once_more_for_its_score(
    vit: Vit, photos: Path, passes: Counter[int], split: str
) -> None:
    root = photos if split == "train" else parts(photos, "train", split)
    weights = saved(Path("weights"), classes=None)
    done = vit("fit", "-c", "probe", "--data", root, "--pretrained", weights, *OPTIONS)
    assert done.status == 0, done.err
    twice = 18 if split == "val" else 0  # for the temperature, and as the scored split
    assert Counter(passes.values()) == Counter({1: 36 - twice, 2: twice})


def test_fine_tuning_passes_train_once_for_the_head(
    vit: Vit, photos: Path, passes: Counter[int]
) -> None:
    root = parts(photos, "train", "test")
    weights = saved(Path("weights"), classes=None)
    more = ("--pretrained", weights, "--steps=2", "--trainer.val_check_interval=2", *OPTIONS)
    done = vit("fit", "-c", "finetune", "--data", root, *more)
    assert done.status == 0, done.err
    assert Counter(passes.values()) == {1: 36}


def test_a_training_passes_train_only_to_train_and_test_once(
    vit: Vit, photos: Path, passes: Counter[int]
) -> None:
    root = parts(photos, "train", "val", "test")
    done = vit("fit", "-c", "quickstart", "--data", root, "--epochs=2", *TINY)
    assert done.status == 0, done.err
    # val after the second epoch and for the temperature; none of train
    assert Counter(passes.values()) == {1: 12, 2: 12}
