"""The task dino: student and teacher in a training, step by step."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tests.command import saved
from tests.extensions.ssl.trainings import (
    HEADS,
    IMAGES,
    make_data,
    make_module,
    of,
    pictures,
    train,
)
from vit.errors import UserError
from vit.extensions.recipes.multi_crop import Crops
from vit.extensions.ssl.dino import Dino
from vit.extensions.ssl.settings import Heads, Pace, Teacher
from vit.training.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore")
CONSTANT = Schedule(decay="constant")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("pictures") / "flat")


def differing(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def test_the_teacher_begins_as_a_copy_and_follows_by_the_closed_form(folder: Path) -> None:
    module = make_module(teacher=Teacher(momentum=0.9), pace=Pace(last_layer=0.0))
    states, steps = train(module.double(), make_data(folder), 8), 8
    pairs = (("model.", "student."), ("teacher_heads.", "heads."))
    for teacher, student in pairs:
        expected = of(states[0], teacher)
        assert not differing(expected, of(states[0], student))
        for step, state in enumerate(states[1:]):
            momentum = 1 - 0.1 * (1 + math.cos(math.pi * step / steps)) / 2  # from 0.9 to 1
            now = of(state, student)
            expected = {
                name: momentum * value + (1 - momentum) * now[name]
                for name, value in expected.items()
            }
            for name, value in of(state, teacher).items():
                assert torch.allclose(value, expected[name], rtol=0, atol=1e-12), name
        assert differing(of(states[0], teacher), of(states[-1], teacher)) == set(expected)


def test_heads_alone_leave_the_backbone_as_it_is_and_then_all_learn(folder: Path) -> None:
    module = make_module(pace=Pace(heads_alone=0.5, last_layer=0.25), schedule=CONSTANT)
    states = train(module, make_data(folder), 8)
    heads = [of(state, "heads.") for state in states]
    body = [of(state, "student.") | {"mask_token": state["mask_token"]} for state in states]
    for step in range(8):
        moved = differing(heads[step], heads[step + 1])
        last = {name for name in heads[0] if ".last." in name}
        assert moved == set(heads[0]) - (last if step < 2 else set()), step
        # The bias of keys has no gradient but by rounding; the head of the network is no part.
        assert differing(body[step], body[step + 1]) == (set() if step < 4 else set(body[0])), step
    teachers = [of(state, "model.") for state in states]
    assert not differing(teachers[0], teachers[4]) and differing(teachers[4], teachers[5])


class Moments(Callback):
    """The optimizer's count of the steps of each part, before its step."""

    def __init__(self) -> None:
        self.counts: list[dict[str, set[float]]] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        counts: dict[str, set[float]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                counts.setdefault(group["part"], set()).add(float(state.get("step", 0)))
        self.counts.append(counts)


def test_moments_begin_when_a_part_does(folder: Path) -> None:
    pace, moments = Pace(heads_alone=0.5, last_layer=0.25), Moments()
    train(make_module(pace=pace), make_data(folder), 8, moments)
    assert [c["heads"] for c in moments.counts] == [{float(step)} for step in range(8)]
    assert [c["last"] for c in moments.counts[2:]] == [{float(step)} for step in range(6)]
    assert [c["student"] for c in moments.counts[4:]] == [{float(step)} for step in range(4)]


@pytest.mark.parametrize("separate", [False, True])
def test_accumulated_batches_make_the_step_of_the_whole(folder: Path, separate: bool) -> None:
    heads = Heads(prototypes=24, hidden=32, bottleneck=8, separate=separate)
    options: dict[str, Any] = {
        "koleo": 0.0, "heads": heads, "pace": Pace(heads_alone=0.25),
        "architecture": {"drop_path": 0.3},
    }  # fmt: skip
    whole, parts = (
        train(make_module(**options).double(), make_data(folder, batch), 8, gradient_clip_val=0.5,
              accumulate_grad_batches=8 // batch)
        for batch in (8, 2)
    )  # fmt: skip
    assert len(whole) == len(parts) == 9
    for name, value in whole[-1].items():
        assert torch.allclose(value, parts[-1][name], rtol=0, atol=1e-9), name
    assert differing(whole[0], whole[-1])


def test_the_student_and_each_head_are_clipped_apart() -> None:
    module = make_module(heads=Heads(prototypes=24, hidden=32, bottleneck=8, separate=True))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    module.configure_gradient_clipping(None, 2.0, "norm")
    for part in ([*module.student.parameters(), module.mask_token], *module.heads):
        gradients = [p.grad for p in (part if isinstance(part, list) else part.parameters())]
        assert torch.stack([g.norm() for g in gradients]).norm() == pytest.approx(2.0, rel=1e-4)


def test_the_rates_are_those_of_the_parts() -> None:
    pace = Pace(layer_decay=0.5, patch_embed=0.2, heads=3.0)
    scales = {}
    for group in make_module(pace=pace).make_optimizer().param_groups:
        assert group["lr"] == pytest.approx(1e-3 * group["lr_scale"])
        scales |= dict.fromkeys(group["names"], (group["part"], group["lr_scale"]))
    assert scales["patch_embed.proj.weight"] == ("student", pytest.approx(0.2 * 0.5**3))
    assert scales["cls_token"] == scales["mask_token"] == ("student", 0.5**3)
    assert scales["blocks.0.attn.qkv.weight"] == ("student", 0.5**2)
    assert scales["blocks.1.mlp.fc1.bias"] == ("student", 0.5)
    assert scales["norm.weight"] == ("student", 1.0)
    assert scales["heads.0.mlp.0.weight"] == ("heads", 3.0)
    assert scales["heads.0.last.weight"] == ("last", 3.0)
    module = make_module(pace=pace)
    assert len(scales) == sum(p.requires_grad for p in module.parameters())


def test_weight_decay_moves_to_its_end(folder: Path) -> None:
    seen: list[list[float]] = []

    class Decays(Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            seen.append(sorted({group["weight_decay"] for group in optimizer.param_groups}))

    train(make_module(pace=Pace(final_decay=0.4)), make_data(folder), 4, Decays())
    expected = [0.4 + (0.05 - 0.4) * (1 + share) / 2 for share in (1, 0.5**0.5, 0, -(0.5**0.5))]
    assert seen == [[0.0, pytest.approx(value)] for value in expected]


def test_an_anchor_holds_the_weights_at_the_start(folder: Path, tmp_path: Path) -> None:
    start = str(saved(tmp_path / "start", classes=None))
    module = Dino.of(None, pretrained=start, gram=1.0, heads=HEADS, image_size=16)
    first = {name: value.clone() for name, value in module.model.state_dict().items()}
    states = train(module, make_data(folder), 3)
    assert not differing(first, of(states[-1], "anchor."))
    assert differing(first, of(states[-1], "student."))


@pytest.mark.parametrize("local", [0, 3])
def test_every_trained_parameter_gets_a_gradient(folder: Path, local: int) -> None:
    class Gradients(Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            self.without = {
                name
                for name, p in module.named_parameters()
                if p.requires_grad and (p.grad is None or not p.grad.abs().sum() > 0)
            }

    gradients, crops = Gradients(), Crops(local=local, local_size=8)
    train(make_module(), make_data(folder, crops=crops), 2, gradients)
    assert gradients.without == set()


def test_an_epoch_has_every_image_once(folder: Path) -> None:
    places: list[int] = []

    class Seen(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, _: int) -> None:
            places.extend(batch[2].tolist())

    train(make_module(), make_data(folder), IMAGES // 8, Seen())
    assert sorted(places) == [*range(IMAGES)]


@pytest.mark.parametrize(
    ("options", "trainer", "message"),
    [
        ({"architecture": {"class_token": False, "pool": "gap"}}, {}, "set class_token: true"),
        ({"gram": 1.0}, {}, "model.gram=1 compares with pre-trained weights: give"),
        ({"channels": 4}, {}, r"leave out data\.channels"),
        ({"koleo": -1.0}, {}, r"model\.koleo=-1\.0 must be at least 0"),
        ({"heads": {"prototypes": 0}}, {}, r"model\.heads\.prototypes=0 must be at least 1"),
        ({"teacher": {"momentum": 1.0}}, {}, r"model\.teacher\.momentum=1\.0 must be in \[0, 1\)"),
        ({"teacher": {"centring": "mean"}}, {}, "choose centre | sinkhorn"),
        ({"pace": {"heads_alone": 1.0}}, {}, r"model\.pace\.heads_alone=1\.0 must be in \[0, 1\)"),
        ({}, {"max_steps": -1, "max_time": "00:00:01:00"}, "needs the run's length"),
        ({}, {"precision": "bf16-true"}, "take bf16-mixed"),
        (
            {"teacher": {"centring": "sinkhorn"}},
            {"accumulate_grad_batches": 2},
            "sinkhorn needs all images of a step at once",
        ),
        ({}, {"batch": 1}, "KoLeo needs at least two images"),
        ({}, {"local_size": 10}, r"data\.crops\.local_size=10 must be .* such as 8"),
    ],
)
def test_what_cannot_be_is_refused(
    folder: Path, options: dict[str, Any], trainer: dict[str, Any], message: str
) -> None:
    kinds = {"heads": Heads, "teacher": Teacher, "pace": Pace}
    with pytest.raises(UserError, match=message):
        made = {
            name: kinds[name](**value) if name in kinds else value
            for name, value in options.items()
        }
        crops = Crops(local=2, local_size=trainer.pop("local_size", 8), blur=False)
        data = make_data(folder, trainer.pop("batch", 8), crops=crops)
        train(make_module(**made), data, trainer.pop("max_steps", 2), **trainer)
