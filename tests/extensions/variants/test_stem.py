"""The stem of convolutions: what it fits to the first batch, and what stays as it is."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tests.command import Vit
from tests.models.small_models import SMALL, random_images
from tests.processes import together
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.zoo import build_model
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

CORRELATED = torch.tensor([[1.0, 0.8, 0.3], [0.0, 0.5, 0.4], [0.0, 0.0, 0.2]])


def fresh(**options: Any) -> Any:
    """A model in training mode."""
    part = {"name": "convolutions", "widths": [8, 16], **options}
    return build_model(ViTConfig(**SMALL, variant={"stem": part})).train()


def correlated(count: int, seed: int = 1) -> Tensor:
    """Images of smooth colours that go together, `b 3 h w`."""
    noise = torch.einsum("cd,bdhw->bchw", CORRELATED, random_images(count, 3, 36, 36, seed=seed))
    return F.avg_pool2d(noise, 3, stride=1, padding=0)[..., :32, :32]


def whitened(model: Any, images: Tensor) -> Tensor:
    """Mean products of the windows of these images after the whitening, `p p`."""
    directions = model.patch_embed.backbone.whitening.directions.double()
    maps = F.conv2d(images.double(), directions)
    return torch.einsum("bihw,bjhw->ij", maps, maps) / maps[:, 0].numel()


def test_windows_of_the_first_training_batch_become_uncorrelated_and_alike() -> None:
    model, images = fresh(), correlated(16)
    before = whitened(model, images)
    assert (before - before.diag().diag()).abs().max() > 0.1  # so there is something to do
    model.eval()(images)
    assert torch.equal(whitened(model, images), before)  # nothing is learned from a test
    model.train()(images)
    after = whitened(model, images)
    # A variance v becomes v / (v + 5e-4): directions that hardly vary are not amplified.
    variances = torch.linalg.eigvalsh(before)
    assert (after - (variances / (variances + 5e-4)).diag()).abs().max() < 1e-4


def test_later_batches_and_a_continued_training_leave_the_directions(tmp_path: Path) -> None:
    model = fresh()
    model(correlated(8))
    directions = model.patch_embed.backbone.whitening.directions.clone()
    model(correlated(8, seed=2))
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    loaded, _ = load_pretrained(tmp_path)
    loaded.train()(correlated(8, seed=3))
    for network in (model, loaded):
        assert torch.equal(
            network.get_buffer("patch_embed.backbone.whitening.directions"), directions
        )


def test_a_loaded_stem_without_a_projection_moves_and_gets_other_classes(tmp_path: Path) -> None:
    model = fresh(widths=[8, 8, SMALL["width"]]).eval()
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    loaded, _ = load_pretrained(tmp_path)
    images = correlated(2)
    expected = model.double()(images.double())
    assert torch.equal(loaded.eval().to("cpu", torch.float64)(images.double()), expected)
    loaded.reset_classifier(5)
    assert loaded(images.double()).shape == (2, 5)
    with pytest.raises(UserError, match="takes images of 3 channels, and cannot take 1"):
        load_pretrained(tmp_path, in_channels=1)


def test_a_frozen_stem_keeps_its_statistics() -> None:
    model, name = fresh(), "patch_embed.backbone.blocks.0.norms.0.running_mean"
    model(correlated(8))
    learned = model.get_buffer(name).clone()
    assert learned.any()
    model.requires_grad_(False)
    model(correlated(8, seed=2))
    assert torch.equal(model.get_buffer(name), learned)


def directions_of_share(images: Tensor, out: Path) -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    model = fresh()
    model(images[rank::2])
    torch.save(model.patch_embed.backbone.whitening.directions, out / f"{rank}.pt")


def test_two_processes_have_the_directions_of_all_their_images(tmp_path: Path) -> None:
    images, alone = correlated(16), fresh()
    assert together(2, tmp_path, directions_of_share, images, tmp_path) == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    alone(images)
    expected = alone.patch_embed.backbone.whitening.directions
    signs = (first * expected).sum((1, 2, 3)).sign()[:, None, None, None]
    assert (first * signs - expected).abs().max() < 1e-2 * expected.abs().max()


def test_the_recipe_trains_and_is_read(vit: Vit, photos: Path) -> None:
    small = ("--data.batch_size=4", "--model.architecture.width=24",
             "--model.architecture.mlp_dim=32", "--data.splits.val_fraction=0")  # fmt: skip
    fit = ("fit", "-c", "cifar10/hybrid", "--data.root", photos, *small)
    done = vit(*fit, "--trainer.max_steps=2", "--run_dir=run")
    assert done.status == 0, done.err
    model, _ = load_pretrained("run")
    directions = model.get_buffer("patch_embed.backbone.whitening.directions")
    assert not torch.equal(directions.flatten(1), torch.eye(len(directions)))
    done = vit("classify", "run", next(photos.rglob("*.jpg")))
    assert done.status == 0, done.err
