"""Training on smaller images first: the pixels of each step, resume, processes, gradients."""

import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from PIL import Image
from torch import Tensor

from tests.command import TINY, Vit, logged
from tests.killing import in_child, killed_at
from vit.cli.main import main
from vit.data.module import ImageData
from vit.data.settings import Loading
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.training.image_classifier import ImageClassifier

TOTAL = 10
SIMPLE = TrainTransform(crop="simple", crop_padding=2)
RESIZED = TrainTransform(crop="resize_random", resize_size=40)


def module(**options: Any) -> ImageClassifier:
    architecture = {"patch_size": 8, "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 1}
    facts = {"classes": ["a", "b", "c"], "image_size": 32}
    return ImageClassifier.of(architecture=architecture, **facts, **options)


def loading(root: Path, size: Any, sizes: Any = None, rank: int = 0, **options: Any) -> ImageData:
    """A data module in a fit of TOTAL steps of 8 images; what the Trainer has else by `trainer`."""
    trainer: dict[str, Any] = {
        "lightning_module": module(), "world_size": 1, "accumulate_grad_batches": 1,
        "max_epochs": -1, "estimated_stepping_batches": TOTAL, "limit_train_batches": 1.0,
        "ckpt_path": None, "default_root_dir": "run", "state": SimpleNamespace(fn="fit"),
        "strategy": SimpleNamespace(root_device=torch.device("cpu")), "global_rank": rank,
        **options.pop("trainer", {}),
    }  # fmt: skip
    per_batch = 8 // (trainer["world_size"] * trainer["accumulate_grad_batches"])
    options = {"batch_size": per_batch, "loading": Loading(num_workers=0), **options}
    data = ImageData(root=str(root), image_size=size, sizes=sizes, **options)
    fake: Any = SimpleNamespace(**trainer, datamodule=data)
    data.trainer = fake
    return data


def steps(data: ImageData, count: int = TOTAL) -> list[tuple[Tensor, Tensor]]:
    """Images and places of the next batches, over epochs, as a fit counts them."""
    loader, batches = data.train_dataloader(), []
    world = data.trainer.world_size  # pyright: ignore[reportOptionalMemberAccess]
    while len(batches) < count:
        for images, _, places in loader:  # pyright: ignore[reportGeneralTypeIssues]
            batches.append((images, places))
            data.consumed_samples += len(images) * world
            if len(batches) == count:
                break
    return batches


@pytest.mark.parametrize("augment", [TrainTransform(), SIMPLE, RESIZED], ids=lambda a: a.crop)
@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_of_each_step_are_those_of_a_module_of_its_size(
    photos: Path, augment: TrainTransform, workers: int
) -> None:
    options = {"augment": augment, "loading": Loading(num_workers=workers)}
    grown = steps(loading(photos, 32, [16, (24, 16)], **options))
    for size, own in (((16, 16), range(4)), ((24, 16), range(4, 7)), ((32, 32), range(7, 10))):
        if augment is RESIZED:
            options["augment"] = TrainTransform(
                crop="resize_random", resize_size=40 * max(size) // 32
            )
        plain = steps(loading(photos, size, **options))
        for step in own:
            assert grown[step][0].shape[-2:] == size, step
            torch.testing.assert_close(grown[step], plain[step], rtol=0, atol=0)


def test_small_images_are_resized_in_memory_to_the_same_pixels(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(36):
        folder = tmp_path / "abc"[number % 3]
        folder.mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    state = {"state": SimpleNamespace(fn=TrainerFn.FITTING)}
    runs = [
        loading(
            tmp_path,
            32,
            [16],
            augment=SIMPLE,
            loading=Loading(num_workers=0, cache=cache),
            trainer=state,
        )
        for cache in ("auto", "none")
    ]
    batches = [steps(run) for run in runs]
    torch.testing.assert_close(*batches, rtol=0, atol=0)
    planes = [run.train_dataloader().dataset._sizes[0].planes for run in runs]  # pyright: ignore
    assert planes[0].shape == (30, 3, 16, 16) and planes[1] is None


def test_processes_and_accumulated_batches_share_the_size_of_their_step(photos: Path) -> None:
    whole = steps(loading(photos, 32, [16]))
    two = [steps(loading(photos, 32, [16], rank, trainer={"world_size": 2})) for rank in range(2)]
    parts = steps(loading(photos, 32, [16], trainer={"accumulate_grad_batches": 2}), 2 * TOTAL)
    for step, (images, places) in enumerate(whole):
        assert images.shape[-1] == (16 if step < 5 else 32)
        for batches in ([rank[step] for rank in two], parts[2 * step : 2 * step + 2]):
            order = torch.cat([part[1] for part in batches])
            assert sorted(order.tolist()) == sorted(places.tolist())
            at = [int((places == place).nonzero()[0]) for place in order]
            torch.testing.assert_close(torch.cat([p[0] for p in batches]), images[at])


def test_the_gradient_is_that_of_the_table_of_the_final_size() -> None:
    network: Any = module().model.double()
    table = network.pos_embed
    assert isinstance(table, Tensor) and table.shape == (1, 17, 16)  # 4 x 4, and the class token
    upstream = torch.randn(6, 16, dtype=torch.float64)

    def score() -> Tensor:
        return (network.position_table((2, 3))[0, 1:] * upstream).sum()

    score().backward()
    gradient, before = table.grad, score().item()
    assert gradient is not None
    with torch.no_grad():
        for place in range(1, 17):  # the score is linear in the table: differences are exact
            table[0, place, 5] += 1
            assert score().item() - before == pytest.approx(gradient[0, place, 5].item())
            table[0, place, 5] -= 1


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"sizes": [12]}, "12 x 12 does not divide into patches of 8"),
    ({"sizes": [40]}, "40 x 40 must be above 0, and at most image_size, 32 x 32"),
    ({"sizes": [0]}, "0 x 0 must be above 0"),
    ({"sizes": [8, 8, 16, 24]}, "are 4 sizes; give at most 3"),
    ({"sizes": [16], "trainer": {"estimated_stepping_batches": math.inf}}, "needs the length"),
    ({"sizes": [16], "augment": TrainTransform(crop="simple", crop_padding=16)}, "crop_padding=16"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_an_impossible_size_is_refused_before_the_first_step(
    photos: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        loading(photos, 32, **options).train_dataloader()


STABLE = ("--model.schedule.decay=constant", "--model.schedule.warmup_steps=1")


def command(photos: Path, *own: str) -> tuple[str, ...]:
    sizes = ("--data.image_size=32", "--data.sizes=[16,24]", "--data.loading.num_workers=2")
    return ("fit", "-c", "cifar10", "--data.root", str(photos), *TINY, *sizes, "--steps=12", *own)


def test_a_run_that_is_killed_near_a_switch_continues_bitwise(vit: Vit, photos: Path) -> None:
    fit = command(photos, *STABLE, "--save_every=0", "--trainer.log_every_n_steps=1")

    def attempt(step: int) -> int:
        killed_at(ImageClassifier, "training_step", step)
        return main([*fit, "--run_dir=killed"])

    for step in (6, 5):  # saved at the ends of epochs, of three steps: steps 4 and 8 are the switch
        assert in_child(lambda step=step: attempt(step)) == -signal.SIGKILL
    for run in ("killed", "whole"):
        done = vit(*fit, f"--run_dir={run}")
        assert done.status == 0, done.err
        assert "image sizes: 16 x 16 from step 0, 24 x 24 from step 4, 32 x 32 from" in done.err
    weights = [Path(run, "model/model.safetensors").read_bytes() for run in ("killed", "whole")]
    assert weights[0] == weights[1]
    assert logged(Path("killed")) == logged(Path("whole"))
    scored = vit("test", "whole", "--json")  # at image_size
    assert scored.status == 0, scored.err
    again = vit("fit", "--resume=whole", "--run_dir=branch", "--cooldown=2")
    assert again.status == 2 and "a cooldown of another run does not equal" in again.err


def test_a_task_of_one_grid_and_an_open_length_are_refused(vit: Vit, photos: Path) -> None:
    mae = ("fit", "-c", "pretrain/mae_cifar10", "--data.root", photos, "--data.sizes=[16]")
    small = ("--steps=2", "--data.loading.num_workers=0", "--trainer.accelerator=cpu")
    done = vit(*mae, *small, "--model.decoder_width=16", "--model.decoder_heads=1")
    assert done.status == 2
    assert "MaskedAutoencoder predicts patches of one grid: leave out data.sizes" in done.err
    fit = [word for word in command(photos) if word != "--steps=12"]
    done = vit(*fit, "--budget=1h")
    assert done.status == 2 and "data.sizes needs the length of the run at its start" in done.err
