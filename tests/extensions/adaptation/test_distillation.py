"""Distillation through a token: the losses, the teacher, and that both reach the training."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.adaptation.distillation import Distillation
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.preprocessing import Preprocess
from vit.training.losses import Loss
from vit.weights.native import save_native

pytestmark = pytest.mark.filterwarnings("ignore")

STUDENT, ANSWERS = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)) * 3
LABELLED = torch.tensor(1.25)
TOKEN = {"distillation_token": True}


def joined(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Tensor:
    """LABELLED with the loss of the token's logits STUDENT on a teacher's ANSWERS."""
    distillation = Distillation(**options)
    monkeypatch.setattr(distillation, "answers", lambda images: ANSWERS)
    return distillation(LABELLED, STUDENT, STUDENT, torch.zeros(2, 3, 8, 8))


def test_hard_targets_are_the_teachers_first_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = 0.7 * LABELLED + 0.3 * F.cross_entropy(STUDENT, ANSWERS.argmax(1))
    torch.testing.assert_close(joined(monkeypatch, alpha=0.3), expected)


def test_soft_targets_are_deits(monkeypatch: pytest.MonkeyPatch) -> None:
    # deit/losses.py: kl_div(log_softmax, log_softmax, "sum", log_target) * T * T / numel
    t = 3.0
    teacher, student = (ANSWERS / t).softmax(1), (STUDENT / t).softmax(1)
    divergence = (teacher * (teacher / student).log()).sum() * t * t / STUDENT.numel()
    soft = joined(monkeypatch, kind="soft", alpha=0.1, temperature=t)
    torch.testing.assert_close(soft, 0.9 * LABELLED + 0.1 * divergence)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, r"alpha=1.5 must be in \[0, 1\]"),
        ({"kind": "soft", "temperature": 0.0}, "temperature=0.0 must be more than 0"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Distillation(**options)


COLORS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]}
SIZE = {"image_size": [8, 8]}


@pytest.fixture
def weights(make_model, tmp_path: Path) -> Path:
    """A teacher of the classes c, a, b with answers of its own and a normalisation of its own."""
    network = make_model(init_seed=3, architecture={"dropout": 0.5}).model
    nn.init.normal_(network.head.weight)
    path = tmp_path / "teacher"
    save_native(path, network, classes=["c", "a", "b"], preprocess=COLORS | SIZE, extra={})
    return path


def teacher(weights: Any, student: Any, **facts: Any) -> Distillation:
    """The loss that is prepared for a student of the classes a, b, c, or as `facts` say."""
    distillation = Distillation(weights)
    distillation.prepare(student, Facts(**{"classes": ["a", "b", "c"], **facts}))
    return distillation


@pytest.fixture
def student(make_model) -> VisionTransformer:
    return make_model(architecture=TOKEN).model


def test_the_teacher_answers_in_the_students_order_without_dropout(weights, student) -> None:
    images = torch.randn(2, 3, 8, 8)
    answers = (ordered := teacher(str(weights), student)).answers(images)
    assert not answers.requires_grad and not ordered.model.training
    assert torch.equal(answers, ordered.answers(images))
    unsorted = teacher(str(weights), student, classes=["c", "a", "b"])
    torch.testing.assert_close(answers, unsorted.answers(images)[:, [1, 2, 0]])


def test_the_teacher_gets_the_colours_it_knows(weights, student) -> None:
    pixels = torch.rand(2, 3, 8, 8)

    def normalised(mean: list[float], std: list[float]) -> Tensor:
        shape = (1, 3, 1, 1)
        return (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)

    ours = {"mean": [0.1, 0.2, 0.6], "std": [0.5, 0.4, 0.3]}
    preprocess = Preprocess.from_dict(ours | SIZE)
    other = teacher(str(weights), student, preprocess=preprocess).to("cpu", torch.float32)
    answers, expected = other.answers(normalised(**ours)), other.model(normalised(**COLORS))
    torch.testing.assert_close(answers, expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_teach_or_learn_is_refused(weights, student, make_model) -> None:
    four = make_model(num_classes=4, architecture=TOKEN).model
    for learner, classes in ((student, ["a", "b", "d"]), (four, None)):
        with pytest.raises(UserError, match=r"teacher knows other classes: \d are asked for"):
            teacher(str(weights), learner, classes=classes)
    with pytest.raises(UserError, match=r"--model\.loss\.teacher\.weights WEIGHTS"):
        teacher(None, student)
    with pytest.raises(UserError, match=r"--model\.architecture\.distillation_token true"):
        teacher(str(weights), make_model().model)


def test_the_teacher_teaches_the_second_head_alone(
    weights: Path, make_data, make_model, make_trainer, snapshot
) -> None:
    # With all of the weight on the teacher, only its head, and what is below it, learns.
    loss = Loss(teacher=Distillation(str(weights), alpha=1.0))
    model = make_model(architecture=TOKEN, loss=loss)
    before = snapshot(model.model)
    make_trainer(max_steps=3, limit_val_batches=0).fit(model, make_data())
    after = snapshot(model.model)
    assert torch.equal(before["head.bias"], after["head.bias"])
    assert not torch.equal(before["head_dist.bias"], after["head_dist.bias"])
    assert set(model.state_dict()) == {f"model.{key}" for key in before}


def test_distillation_is_compiled_too(
    weights: Path, make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile(function: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", "")
        return lambda *inputs: (compiled.append(name), function(*inputs))[1]

    monkeypatch.setattr(torch, "compile", compile)
    loss = Loss(teacher=Distillation(str(weights)))
    model = make_model(architecture=TOKEN, loss=loss, compile=True)
    make_trainer(max_steps=3, limit_val_batches=0).fit(model, make_data())
    assert compiled.count("outputs") == 3
