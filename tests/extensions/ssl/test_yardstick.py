"""The measures by which a run is watched: closed forms, and cuts of a labelled folder."""

import csv
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.command import coloured
from vit.data.module import ImageData
from vit.errors import UserError
from vit.extensions.reports.intervals import Paired
from vit.extensions.ssl.watch import is_worse
from vit.extensions.ssl.yardstick import Yardstick

LEVEL = 0.05 / 20


@pytest.mark.parametrize(
    ("lost", "gained", "looks"), [(9, 0, 20), (8, 0, 20), (5, 0, 1), (4, 0, 1), (40, 18, 20)]
)
def test_a_look_is_worse_by_the_binomial_tail(lost: int, gained: int, looks: int) -> None:
    changed = lost + gained
    tail = sum(math.comb(changed, n) for n in range(lost, changed + 1)) / 2**changed
    assert is_worse(Paired(100, 70, lost, gained), looks) == (tail < 0.05 / looks)


def test_gains_are_never_worse() -> None:
    assert not is_worse(Paired(100, 50, 0, 40), 1) and not is_worse(Paired(100, 50, 3, 3), 1)


def opened(root: Path, **options: Any) -> Yardstick:
    like = ImageData(root=str(root), image_size=16, batch_size=8, **options)
    alone: Any = SimpleNamespace(global_rank=0, world_size=1, num_devices=1, state=None)
    alone.state = SimpleNamespace(fn=None)
    alone.strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return Yardstick(str(root), LEVEL, like, alone)


def files(yardstick: Yardstick) -> list[set[str]]:
    sets = [yardstick.data.image_set(half) for half in yardstick.halves]
    return [{str(images.items[i]) for i in range(len(images))} for images in sets]


def test_a_folder_is_cut_in_halves_of_each_class_by_the_seed(photos: Path) -> None:
    halves = [files(opened(photos, seed=seed)) for seed in (0, 0, 1)]
    for stopping, measuring in halves:
        assert len(stopping) == len(measuring) == 18 and not stopping & measuring
        assert sum("red" in name for name in stopping) == 6
    assert halves[0] == halves[1] != halves[2]


def test_a_test_folder_measures_whatever_val_there_is(tmp_path: Path) -> None:
    photos = coloured(tmp_path / "photos")
    for split in ("train", "val", "test"):
        shutil.copytree(photos, tmp_path / "split" / split)
    assert opened(tmp_path / "split").halves == ("train", "test")
    shutil.rmtree(tmp_path / "split" / "val")
    assert [len(half) for half in files(opened(tmp_path / "split"))] == [36, 36]


def test_a_list_says_by_its_splits_which_half_measures(tmp_path: Path) -> None:
    photos = coloured(tmp_path / "photos")
    paths = sorted(photos.rglob("*.jpg"))
    patients = {str(path): int(path.stem) // 3 for path in paths}  # three photos of each
    with (tmp_path / "list.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("path", "label", "split"))
        for path in paths:
            split = "train" if patients[str(path)] % 2 else "val"
            rows.writerow((path, path.parent.name, split))
    stopping, measuring = files(opened(tmp_path / "list.csv"))
    assert {patients[name] for name in stopping} == {1, 3}
    assert {patients[name] for name in measuring} == {0, 2}


def test_a_folder_in_which_no_loss_could_be_told_from_chance_is_refused(tmp_path: Path) -> None:
    photos = coloured(tmp_path / "photos")
    for path in photos.rglob("*.jpg"):
        if int(path.stem) > 4:
            path.unlink()
    with pytest.raises(UserError, match="is 6 images, and a loss of all of them could be chance"):
        opened(photos)


def test_hits_are_those_of_neighbours_among_the_others_of_a_half(photos: Path) -> None:
    yardstick = opened(photos)

    def colours(images: Tensor) -> tuple[Tensor, Tensor]:
        return images.float().mean((2, 3)), torch.zeros(1, 1)

    def equal(images: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones(len(images), 2), torch.zeros(1, 1)

    assert [half.tolist() for half in yardstick.hits(colours)] == [[True] * 18] * 2
    # Of 17 others five are of the image's class and six of each other one: these win.
    assert [half.tolist() for half in yardstick.hits(equal)] == [[False] * 18] * 2
