"""A teacher's answers: their file, what is kept, and the batches in which they are learned."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.command import coloured
from vit.data.sampler import TrainBatchSampler
from vit.data.settings import Loading
from vit.data.sources import ImageSet, PathList
from vit.errors import UserError
from vit.extensions.transfer.pseudo import Answers, Pseudo, check_unseen
from vit.training.losses import Loss

CLASSES = ["blue", "grün", "red"]


def random_answers(count: int, classes: int, seed: int) -> np.ndarray:
    """float16 `n k`, some of which are equally sure."""
    draws = np.random.default_rng(seed).integers(1, 6, (count, classes)) ** 2.0
    return (draws / draws.sum(1, keepdims=True)).astype(np.float16)


def by_hand(values: np.ndarray, confidence: float, per_class: int | None) -> list[int]:
    """`chosen_rows`, image by image."""
    best = [max(range(len(row)), key=lambda k, row=row: row[k]) for row in values.tolist()]
    limit = float(np.float16(confidence))
    kept = [i for i, row in enumerate(values.tolist()) if row[best[i]] >= limit]
    if per_class is None:
        return kept
    rows = []
    for k in range(values.shape[1]):
        mine = sorted((i for i in kept if best[i] == k), key=lambda i: (-values[i, best[i]], i))
        rows += [mine[place % len(mine)] for place in range(per_class) if mine]
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_filter_and_balance_are_those_of_brute_force(seed: int) -> None:
    values = random_answers(40, 2 + seed % 5, seed)
    for confidence, per_class in product((0.0, 0.3, 0.5, 0.8), (None, 1, 7, 100)):
        answers, kept = (
            Answers(values, [], [*map(str, range(values.shape[1]))], ""),
            by_hand(values, confidence, per_class),
        )
        if kept:
            assert answers.chosen(confidence, per_class).tolist() == kept
        else:
            with pytest.raises(
                UserError, match=rf"{confidence} leaves none of 40 .*; give a lower"
            ):
                answers.chosen(confidence, per_class)


def test_answers_are_read_as_written_and_damage_is_found(tmp_path: Path) -> None:
    file = tmp_path / "answers.safetensors"
    written = Answers(
        random_answers(5, 3, 0), ["a.jpg", "é/\udce9.jpg", "c", "d", "e"], CLASSES, "w"
    )
    written.write(file)
    read = Answers.read(file)
    assert read.values.dtype == np.float16 and np.array_equal(read.values, written.values)
    assert (read.names, read.classes, read.weights) == (written.names, CLASSES, "w")
    content = bytearray(file.read_bytes())
    for place in (-1, content.index(b"c.jpg") if b"c.jpg" in content else content.index(b"a.jpg")):
        damaged = bytearray(content)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="answers as they were written: delete it"):
            Answers.read(file)
    Answers(written.values, ["a.jpg"], CLASSES, "w").write(file)  # a right digest, other shapes
    with pytest.raises(UserError, match="answers as they were written: delete it"):
        Answers.read(file)
    for content in (b"nothing", b""):
        file.write_bytes(content)
        with pytest.raises(UserError, match="does not hold a teacher's answers"):
            Answers.read(file)


class At:
    consumed_samples = 0


def sampler(consumed: int = 0, **options: Any) -> TrainBatchSampler:
    """Batches of four from ten images, with the others 10 to 16."""
    progress = At()
    progress.consumed_samples = consumed
    shared = {"seed": 3, "rank": 0, "world_size": 1, "progress": progress}
    return TrainBatchSampler(10, 4, **{**shared, **options})


OTHERS = np.arange(10, 17)


def test_a_batch_has_the_ratio_and_the_others_come_equally_often() -> None:
    first = [batch for at in (0, 20) for batch in sampler(at, others=(OTHERS, 1.0))]
    assert all(sum(index < 10 for _, index, _ in batch) == 2 for batch in first)
    assert len(first) == 2 * 5  # an epoch is one of the labelled images
    for epoch in (first[:5], first[5:]):
        assert sorted(i for batch in epoch for _, i, _ in batch if i < 10) == [*range(10)]
    others = [i for batch in first for _, i, _ in batch if i >= 10]
    for start in (0, 7):  # the second pass over them begins inside the first epoch
        assert sorted(others[start : start + 7]) == [*range(10, 17)]
    keys = [key for batch in first for key in batch]
    assert len(set(keys)) == len(keys)  # each shows another augmentation


def test_no_others_are_the_order_of_before() -> None:
    assert [*sampler()] == [*sampler(others=(OTHERS, 0.0))]


@pytest.mark.parametrize(("world", "accumulated", "repeats"), [(1, 1, 1), (2, 1, 3), (2, 3, 1)])
def test_any_processes_show_the_same_and_a_resume_goes_on(
    world: int, accumulated: int, repeats: int
) -> None:
    rows = np.array([20, 20, 21, 22, 25])

    def step(consumed: int, batch: int, rank: int, world: int, accumulated: int) -> list[Any]:
        options = {"rank": rank, "world_size": world, "accumulated": accumulated}
        progress = At()
        progress.consumed_samples = consumed
        return [
            *TrainBatchSampler(
                20,
                batch,
                seed=1,
                **options,
                repeats=repeats,
                progress=progress,
                others=(rows, 2.0),
            )
        ][:accumulated]

    whole = 12
    for consumed in (0, whole, 7 * whole, 8 * whole):
        one = step(consumed, whole, 0, 1, 1)[0]
        size = whole // world // accumulated
        several = [step(consumed, size, rank, world, accumulated) for rank in range(world)]
        assert sorted(one) == sorted(key for rank in several for batch in rank for key in batch)
        assert sum(index < 20 for _, index, _ in one) == 4


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """Six pictures of one colour, and the answers of a teacher about five of them."""
    folder = tmp_path / "more"
    folder.mkdir()
    for i in range(6):
        Image.new("RGB", (20, 20), (40 * i, 10, 10)).save(folder / f"{i}.png")
    values = np.array(
        [[0.1, 0.2, 0.7], [0.4, 0.3, 0.3], [0.2, 0.6, 0.2], [0.25, 0.25, 0.5], [0.1, 0.0, 0.9]]
    ).astype(np.float16)
    Answers(values, [f"{i}.png" for i in (5, 4, 3, 2, 1)], CLASSES, "w").write(tmp_path / "answers")
    return folder


def data_with(photos: Path, more: Path, **options: Any) -> vit.ImageData:
    places = {"answers": str(more.parent / "answers"), "root": str(more)}
    return vit.ImageData(
        root=str(photos),
        image_size=16,
        batch_size=8,
        loading=Loading(num_workers=0),
        pseudo=Pseudo(**{**places, "ratio": 1.0, "confidence": 0.45, **options}),
    )


@pytest.mark.parametrize("hard", [False, True])
def test_batches_have_labels_and_answers(tmp_path: Path, more: Path, hard: bool) -> None:
    data = data_with(coloured(tmp_path / "photos"), more, hard=hard)
    first, seen = len(data.splits.train), set()
    kept = {0: 5, 1: 3, 2: 2, 3: 1}  # place among those that are kept -> the name of the picture
    answers = torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.6, 0.2], [0.25, 0.25, 0.5], [0.1, 0.0, 0.9]])
    for images, targets, indices in data.train_dataloader():
        assert (indices < first).sum() == 4 and len(images) == 8
        for image, target, index in zip(images, targets, indices.tolist(), strict=True):
            if index < first:
                wanted = torch.eye(3)[data.splits.train.labels[index]]
            else:
                wanted = answers[index - first]
                assert image[0].unique().tolist() == [40 * kept[index - first]]
                seen.add(index - first)
            if hard:
                assert target == wanted.argmax()
            else:
                torch.testing.assert_close(target, wanted, atol=5e-4, rtol=0)
                assert target.sum() == pytest.approx(1, abs=1e-6)
    assert seen == {*kept}
    assert data.samples_per_epoch(1) == first // 4 * 8


def test_answers_of_other_classes_are_refused(tmp_path: Path, more: Path) -> None:
    photos = coloured(tmp_path / "photos")
    (photos / "red").rename(photos / "rot")
    with pytest.raises(UserError, match="teacher of other classes"):
        _ = data_with(photos, more).mixture


def test_copies_of_held_out_images_are_found_by_their_pixels(tmp_path: Path) -> None:
    photos = coloured(tmp_path / "photos")
    splits = vit.ImageData(root=str(photos)).splits
    assert splits.val is not None and splits.test is not None
    others = tmp_path / "others"
    others.mkdir()
    images = {"train.png": splits.train, "val.png": splits.val, "test.png": splits.test}
    for name, each in images.items():  # another format, the same pixels
        Image.open(each.items[0]).save(others / name)
    (others / "broken.png").write_bytes(b"no picture")

    def unlabelled(*names: str) -> ImageSet:
        paths = PathList(names, str(others))
        return ImageSet(paths, np.zeros(len(names)), paths)

    here = Loading(num_workers=0)
    with pytest.raises(UserError, match=r"broken\.png"):
        check_unseen(unlabelled("train.png", "broken.png"), splits, None, here)
    skips = Loading(num_workers=0, on_error="skip")
    check_unseen(unlabelled("train.png", "broken.png"), splits, None, skips)
    for name, each in (("val.png", splits.val), ("test.png", splits.test)):
        with pytest.raises(UserError, match=r"1 of 2 .* are also in val or test") as error:
            check_unseen(unlabelled("train.png", name), splits, None, here)
        assert name in str(error.value) and each.names[0] in str(error.value)


def test_cross_entropy_of_answers_and_its_gradient_are_the_closed_forms() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(6, 4, generator=generator, dtype=torch.float64)
    targets /= targets.sum(1, keepdim=True)
    loss = Loss()(logits, targets)
    loss.backward()
    z, q = logits.detach().numpy(), targets.numpy()
    entropy = np.log(np.exp(z).sum(1)) - (q * z).sum(1)
    assert loss.item() == pytest.approx(entropy.mean(), abs=1e-12)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), (p - q) / 6, atol=1e-12)
