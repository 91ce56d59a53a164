"""Distillation through a token: the losses, the teacher, and that both reach the training."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vit
from vit.errors import UserError
from vit.extensions.adaptation.distillation import Distillation
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.preprocessing import Preprocess
from vit.training.losses import Loss
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

pytestmark = pytest.mark.filterwarnings("ignore")

STUDENT, ANSWERS = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)) * 3
LABELLED = torch.tensor(1.25)
TOKEN = {"distillation_token": True}


def joined(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Tensor:
    """LABELLED with the loss of the token's logits STUDENT on a teacher's ANSWERS."""
    distillation = Distillation(**{"kind": "hard", **options})
    distillation.has_token, distillation.multilabel = True, False
    monkeypatch.setattr(distillation, "answers", lambda images: (ANSWERS, ANSWERS))
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
        ({"kind": "hard", "temperature": 2.0}, "temperature=2.0 has no effect on kind=hard"),
        ({"kind": "none"}, "leave nothing to learn"),
        ({"feature_weight": 2.0}, "feature_weight=2.0 has no effect"),
        ({"features": "l2"}, "features='l2' is unknown"),
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


def teacher(weights: Any, student: Any, **options: Any) -> Distillation:
    """The loss that is prepared for a student of the classes a, b, c, or as facts in `options`
    say."""
    facts = {f.name: options.pop(f.name) for f in fields(Facts) if f.name in options}
    distillation = Distillation(weights, **options)
    distillation.prepare(student, Facts(**{"classes": ["a", "b", "c"], **facts}))
    return distillation


@pytest.fixture
def student(make_model) -> VisionTransformer:
    return make_model(architecture=TOKEN).model


def test_the_teacher_answers_in_the_students_order_without_dropout(weights, student) -> None:
    images = torch.randn(2, 3, 8, 8)
    answers, _ = (ordered := teacher(str(weights), student)).answers(images)
    assert not answers.requires_grad and not ordered.model.training
    assert torch.equal(answers, ordered.answers(images)[0])
    unsorted = teacher(str(weights), student, classes=["c", "a", "b"])
    torch.testing.assert_close(answers, unsorted.answers(images)[0][:, [1, 2, 0]])


def test_the_teacher_gets_the_colours_it_knows(weights, student) -> None:
    pixels = torch.rand(2, 3, 8, 8)

    def normalised(mean: list[float], std: list[float]) -> Tensor:
        shape = (1, 3, 1, 1)
        return (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)

    ours = {"mean": [0.1, 0.2, 0.6], "std": [0.5, 0.4, 0.3]}
    preprocess = Preprocess.from_dict(ours | SIZE)
    other = teacher(str(weights), student, preprocess=preprocess).to("cpu", torch.float32)
    answers, expected = other.answers(normalised(**ours))[0], other.model(normalised(**COLORS))
    torch.testing.assert_close(answers, expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_teach_or_learn_is_refused(weights, student, make_model) -> None:
    four = make_model(num_classes=4, architecture=TOKEN).model
    for learner, classes in ((student, ["a", "b", "d"]), (four, None)):
        with pytest.raises(UserError, match=r"teacher knows other classes: \d are asked for"):
            teacher(str(weights), learner, classes=classes)
    with pytest.raises(UserError, match=r"--model\.loss\.teacher\.weights WEIGHTS"):
        teacher(None, student)
    for options in ({"features": "cosine"}, {"kind": "none", "features": "cosine"}):
        with pytest.raises(UserError, match="a distillation token learns answers"):
            teacher(str(weights), student, **options)
    gray = vit.create_model("vit_ti16", num_classes=3, in_channels=1, depth=1, **TOKEN)
    with pytest.raises(UserError, match="the teacher takes 3 channels, and images have 1"):
        teacher(str(weights), gray)
    with pytest.raises(UserError, match="kind=hard is for one label"):
        teacher(str(weights), make_model().model, kind="hard", multilabel=True)


def test_a_teacher_of_unknown_colours_is_refused_and_what_is_assumed_is_said(
    weights: Path, student: VisionTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare.pth"
    tiny = vit.create_model("vit_ti16", num_classes=3, image_size=16, depth=1)
    nn.init.normal_(tiny.head.weight)  # pyright: ignore
    torch.save(tiny.state_dict(), bare)
    ours = Preprocess.from_dict(COLORS | SIZE)
    with pytest.raises(UserError, match="does not say how images are normalised for the teacher"):
        teacher(str(bare), student, preprocess=ours)
    network, report = load_pretrained(weights)
    report.notes.append("heads are assumed")
    with pytest.MonkeyPatch.context() as patch:
        module = "vit.extensions.adaptation.distillation.create_model"
        patch.setattr(module, lambda report, **_: (report(loaded[1]), loaded[0])[1])
        loaded = network, report
        teacher(str(weights), student)
    assert "note: teacher: heads are assumed" in capsys.readouterr().err


def test_the_teacher_teaches_the_second_head_alone(
    weights: Path, make_data, make_model, make_trainer, snapshot
) -> None:
    # With almost all of the weight on the teacher its head, and what is below it, learns; with all
    # of it the head of the labels, whose answers count half, would stay as it was.
    loss = Loss(teacher=Distillation(str(weights), alpha=1 - 1e-9))
    model = make_model(architecture=TOKEN, loss=loss, optimizer=partial(torch.optim.SGD, lr=0.1))
    before = snapshot(model.model)
    make_trainer(max_steps=3, limit_val_batches=0).fit(model, make_data())
    after = snapshot(model.model)
    torch.testing.assert_close(before["head.bias"], after["head.bias"])
    assert not torch.equal(before["head_dist.bias"], after["head_dist.bias"])
    assert set(model.state_dict()) == {f"model.{key}" for key in before}
    model = make_model(architecture=TOKEN, loss=Loss(teacher=Distillation(str(weights), alpha=1.0)))
    with pytest.raises(UserError, match="or alpha 1, or the token"):
        make_trainer(max_steps=1, limit_val_batches=0).fit(model, make_data())


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


def plain(weights: Any, make_model: Any, **options: Any) -> tuple[Distillation, Any]:
    """The loss for a student without a distillation token, whose head is not zero, and it."""
    network = make_model().model
    nn.init.normal_(network.head.weight)
    return teacher(str(weights), network, **options), network


def test_a_student_without_a_token_learns_probabilities(weights: Path, make_model) -> None:
    distillation, network = plain(weights, make_model, temperature=2.0, alpha=0.25)
    images = torch.randn(5, 3, 8, 8)
    outputs = distillation.outputs(network, images)
    p, q = ((x / 2).softmax(1) for x in (distillation.answers(images)[0], network(images)))
    divergence = 4 * (p * (p / q).log()).sum(1).mean()  # Hinton et al., section 2
    expected = 0.75 * LABELLED + 0.25 * divergence
    torch.testing.assert_close(distillation(LABELLED, *outputs, images), expected)


def test_several_labels_are_learned_one_by_one(weights: Path, make_model) -> None:
    with pytest.raises(UserError, match="the teacher was not trained on several labels per image"):
        plain(weights, make_model, multilabel=True)
    several = {"preprocess": COLORS | SIZE, "extra": {"multilabel": True}}
    save_native(weights, load_pretrained(weights)[0], classes=["c", "a", "b"], **several)
    with pytest.raises(UserError, match="the teacher was not trained on one label per image"):
        plain(weights, make_model)
    distillation, network = plain(weights, make_model, multilabel=True, alpha=1.0)
    images = torch.randn(5, 3, 8, 8)
    p, q = (x.sigmoid() for x in (distillation.answers(images)[0], network(images)))
    expected = -(p * q.log() + (1 - p) * (1 - q).log()).sum(1).mean()
    loss = distillation(LABELLED, *distillation.outputs(network, images), images)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("kind", ("cosine", "smooth_l1"))
def test_features_are_compared_behind_a_projection(weights: Path, make_model, kind: str) -> None:
    options = {"kind": "none", "features": kind, "feature_weight": 0.5}
    distillation, network = plain(weights, make_model, **options)
    images = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        tokens = network.forward_features(images)
        pooled = network.forward_head(tokens, pre_logits=True).double().numpy()
        theirs = distillation.answers(images)[1].double().numpy()
        weight, bias = (p.double().numpy() for p in distillation.projection.parameters())
        loss = distillation(LABELLED, *distillation.outputs(network, images), images)
    ours = pooled @ weight.T + bias
    if kind == "cosine":
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        expected = (1 - (ours * theirs).sum(1) / norms).mean()
    else:
        mean, variance = theirs.mean(1, keepdims=True), theirs.var(1, keepdims=True)
        apart = np.abs(ours - (theirs - mean) / np.sqrt(variance + 1e-5))
        expected = np.where(apart < 1, apart**2 / 2, apart - 0.5).mean()
    assert float(loss) == pytest.approx(1.25 + 0.5 * expected, rel=1e-5)


def test_a_teacher_of_another_architecture_has_its_size(make_model, tmp_path: Path) -> None:
    resnet: Any = vit.create_model("bit_r50x1", image_size=32, num_classes=3)
    nn.init.normal_(resnet.head.fc.weight)
    steps = COLORS | {"image_size": [32, 32]}
    save_native(tmp_path, resnet, classes=["a", "b", "c"], preprocess=steps, extra={})
    distillation, _ = plain(tmp_path, make_model)
    images = torch.randn(2, 3, 8, 8)
    larger = F.interpolate(images, (32, 32), mode="bilinear", antialias=True)
    torch.testing.assert_close(distillation.answers(images)[0], distillation.model(larger))
    distillation.to("cpu", torch.bfloat16)
    half = distillation.answers(images.bfloat16())[0]
    expected = distillation.model(
        F.interpolate(
            images.bfloat16().float(), (32, 32), mode="bilinear", antialias=True
        ).bfloat16()
    )
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, expected, rtol=0.05, atol=0.05)
