import math
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn

import vit
from tests.grouped import image_classifier, tuned
from vit.data.module import Sampling
from vit.errors import UserError
from vit.extensions.adaptation.lora import LoRA
from vit.extensions.recipes.ema import EMA
from vit.training.image_classifier import ImageClassifier
from vit.training.learning import Learning
from vit.training.losses import Loss
from vit.training.mixing import Mixing
from vit.training.optimizers.muon import MuonWithAdamW
from vit.training.schedules import Schedule
from vit.weights.native import save_native

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["vit_ti16", "distilled", "bit_r50x1"])
def test_a_linear_probe_trains_the_heads_alone_without_dropout(
    name: str, make_data, make_model, make_trainer, snapshot
) -> None:
    if name == "bit_r50x1":
        options = {"num_classes": 3, "image_size": 8}
        model = image_classifier(
            name, architecture={"depths": [1]}, freeze_backbone=True, **options
        )
        heads = {"head.fc"}
    else:
        architecture = {"dropout": 0.5, "drop_path": 0.5, "distillation_token": name == "distilled"}
        model = make_model(architecture=architecture, freeze_backbone=True)
        heads = {"head", "head_dist"} if name == "distilled" else {"head"}
    before = snapshot(model.model)
    modes: list[bool] = []

    class Modes(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
            modes.extend(m.training for m in module.model.modules())

    make_trainer(max_epochs=2, callbacks=[Modes()]).fit(model, make_data())
    assert not any(modes)
    for key, value in model.model.state_dict().items():
        assert torch.equal(value, before[key]) == (key.rpartition(".")[0] not in heads), key


def test_head_bias_is_for_new_rows_only(make_model, tmp_path) -> None:
    loss = Loss(kind="sigmoid", head_bias=-6.9)
    new = make_model(loss=loss, architecture={"distillation_token": True}).model
    for head in (new.head, new.head_dist):
        assert head.bias.tolist() == pytest.approx([-6.9] * 3)
    classes = ["a", "b", "c"]
    nn.init.constant_(new.head.bias, 1.0)
    save_native(tmp_path, new, classes=classes, preprocess=None, extra={})
    options: dict[str, Any] = {"pretrained": str(tmp_path), "image_size": 8, "loss": loss}
    same = image_classifier(num_classes=3, classes=classes, **options)
    assert same.model.head.bias.tolist() == [1.0] * 3
    other = image_classifier(num_classes=4, classes=[*classes, "d"], **options)
    assert other.load_report is not None and other.load_report.reinitialised
    assert other.model.head.bias.tolist() == pytest.approx([1.0, 1.0, 1.0, -6.9])


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two heads": {"architecture": {"distillation_token": True}},
    "several labels": {"multilabel": True},
    "tree": {"tree": True, "classes": ["x/a", "x/b", "y"]},
    "lora": {"adaptation": LoRA(2)},
    "frozen": {"freeze_backbone": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("names", [None, ["d", "e", "f"]])
def test_rows_of_other_classes_do_not_stay_because_their_number_agrees(
    way: str, names: list[str] | None, make_model, tmp_path
) -> None:
    options = {"classes": ["a", "b", "c"], **WAYS[way]}
    weights = make_model(architecture=options.pop("architecture", None)).model
    for layer in weights.head_layers:
        nn.init.ones_(layer.weight)
    save_native(tmp_path, weights, classes=names, preprocess=None, extra={})
    options |= {"num_classes": 3, "image_size": 8, "pretrained": str(tmp_path)}
    new = image_classifier(**options)
    assert new.load_report is not None and new.load_report.reinitialised == ["head"]
    assert all((layer.weight == 0).all() for layer in new.model.head_layers)
    kept = image_classifier(**options, head="keep")
    assert kept.load_report is not None and not kept.load_report.reinitialised
    assert all((layer.weight == 1).all() for layer in kept.model.head_layers)
    same = image_classifier(**options | {"classes": names})
    assert all((layer.weight == 1).all() for layer in same.model.head_layers)


def test_compile_compiles_in_place_and_keeps_the_keys(
    make_data, make_model, make_trainer, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def compiled(function: Any, *args: Any, **kwargs: Any) -> Any:
        return lambda *inputs: (calls.append("compiled"), function(*inputs))[1]

    monkeypatch.setattr(torch, "compile", compiled)
    model, data = make_model(compile=True), make_data()
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last")
    trainer = make_trainer(max_epochs=1, callbacks=[EMA(), keep])
    trainer.fit(model, data)
    assert len(calls) == 5 + 2
    trainer.test(model, data, verbose=False)
    assert len(calls) == 5 + 2 + 1
    keys = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert set(keys) == {f"model.{key}" for key in make_model().model.state_dict()}
    make_trainer(max_epochs=1).fit(make_model(), data)
    assert len(calls) == 5 + 2 + 1


def test_a_checkpoint_says_what_it_is_in_plain_types(
    make_data, make_model, make_trainer, tmp_path
) -> None:
    data = make_data()
    labels: dict[str, Any] = {"classes": data.classes, "counts": data.counts}
    model = make_model(**labels, loss=Loss(class_weights="balanced"), preprocess=data.preprocess)
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last")
    make_trainer(max_epochs=1, callbacks=[keep]).fit(model, data)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    scores = {k: v.item() for k, v in model.trainer.callback_metrics.items() if k[:4] == "val/"}
    assert checkpoint["vit"] == {
        "config": model.model.config.to_dict(),
        "classes": ["a", "b", "c"],
        "preprocess": data.preprocess.to_dict(),
        "weights": "raw",
        "metrics": scores,
        "extra": {"multilabel": False},
    }
    assert set(checkpoint["state_dict"]) == {f"model.{key}" for key in model.model.state_dict()}


@pytest.mark.parametrize("kind", ["raw", "average", "low rank", "several labels"])
def test_a_checkpoint_gives_its_classifier_back(
    kind: str, make_data, make_model, make_trainer, tmp_path
) -> None:
    data, several = make_data(), kind == "several labels"
    options: dict[str, Any] = {"classes": data.classes, "preprocess": data.preprocess}
    model = make_model(**options)
    if kind == "low rank":
        save_native(tmp_path / "start", model.model, classes=None, preprocess=None, extra={})
        model = tuned(str(tmp_path / "start"), **options, adaptation=LoRA(2))
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last")
    average = [EMA()] if kind == "average" else []
    make_trainer(max_epochs=1, callbacks=[keep, *average]).fit(model, data)
    if several:
        file = torch.load(tmp_path / "last.ckpt", weights_only=True)
        file["vit"]["extra"] = {"multilabel": True, "thresholds": [0.1, 0.2, 0.3]}
        torch.save(file, tmp_path / "last.ckpt")
    path, images = tmp_path / "last.ckpt", torch.randn(4, 3, 8, 8)
    again = ImageClassifier.load_from_checkpoint(path, learning=Learning(layer_decay=0.5))
    loaded = vit.load(path)
    with torch.no_grad():
        assert torch.equal(again.eval()(images), loaded.model(images))
    assert (again.classes, again.layer_decay) == (loaded.classes, 0.5)
    assert again.preprocess == loaded.preprocess == data.preprocess
    assert (again.multilabel, again.monitor) == (several, "val/map" if several else "val/acc1")
    assert again.test_metrics.chosen() == ({"thresholds": [0.1, 0.2, 0.3]} if several else {})
    if not several:
        make_trainer(max_steps=1).fit(again, data)


def first_loss(model: Any, data: Any, trainer: Any) -> float:
    trainer.fit(model, data)
    return trainer.callback_metrics["train/loss"].item()


def test_class_weights_and_mixing_reach_the_loss(make_data, make_model, make_trainer) -> None:
    one_step: dict[str, Any] = {"max_steps": 2, "limit_val_batches": 0}
    losses = [
        first_loss(
            make_model(counts=[16, 15, 13], **options), make_data(), make_trainer(**one_step)
        )
        for options in (
            {},
            {"loss": Loss(class_weights="balanced")},
            {"mixing": Mixing(mixup=1.0)},
            {"mixing": Mixing(mixup=1.0), "loss": Loss(class_weights="balanced")},
        )
    ]
    assert len(set(losses)) == len(losses) and all(map(math.isfinite, losses))


def test_the_validation_loss_is_the_plain_one(make_data, make_model, make_trainer) -> None:
    losses = []
    for loss in (Loss(), Loss(label_smoothing=0.3, class_weights="balanced")):
        model = make_model(counts=[30, 2, 2], loss=loss)
        nn.init.normal_(model.model.head.weight, generator=torch.Generator().manual_seed(0))
        [scores] = make_trainer().validate(model, make_data(), verbose=False)
        losses.append(scores["val/loss"])
    assert losses[0] == losses[1] != pytest.approx(math.log(3), abs=1e-3)


@pytest.mark.parametrize("mixing", [Mixing(), Mixing(mixup=1.0)])
def test_a_loss_of_ones_own_gets_class_numbers_or_shares_and_leaves_the_validation_loss(
    mixing: Mixing, make_data, make_model, make_trainer
) -> None:
    seen: list[torch.Tensor] = []

    def own(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(targets)
        return 2 * nn.functional.cross_entropy(logits, targets)

    scored, losses = [], []
    for loss in (Loss(function=own), Loss()):
        model = make_model(loss=loss, mixing=mixing)
        scored += make_trainer().validate(model, make_data(), verbose=False)
        losses.append(first_loss(model, make_data(), make_trainer(max_steps=1)))
    assert scored[0] == scored[1] and losses[0] == pytest.approx(2 * losses[1])
    assert (seen[0].dtype, seen[0].dim()) == ((torch.float32, 2) if mixing else (torch.int64, 1))
    several = make_model(multilabel=True, loss=Loss(function=own))
    assert several.plain_loss == Loss(kind="sigmoid")


@pytest.mark.parametrize(
    ("precision", "muon"), [("bf16-mixed", False), ("16-mixed", True), ("bf16-true", True)]
)
def test_half_precision_clips_and_learns(
    precision: str, muon: bool, make_data, make_model, make_trainer
) -> None:
    optimizer = {"optimizer": lambda params: MuonWithAdamW(params)} if muon else {}
    model = make_model(schedule=Schedule(decay="constant"), **optimizer)
    before = model.model.head.weight.detach().clone()
    trainer = make_trainer(max_epochs=6, precision=precision, gradient_clip_val=1.0)
    trainer.fit(model, make_data())
    assert trainer.callback_metrics["train/loss"] < math.log(3) - 0.02
    assert model.model.head.weight.isfinite().all()
    assert not torch.equal(model.model.head.weight.float(), before)


def test_layer_decay_sets_the_rates(make_data, make_model, make_trainer) -> None:
    model = make_model(layer_decay=0.5, schedule=Schedule(decay="constant"))
    trainer = make_trainer(max_steps=1)
    trainer.fit(model, make_data())
    rates = {n: g["lr"] for g in trainer.optimizers[0].param_groups for n in g["names"]}
    assert rates["head.weight"] == pytest.approx(1e-3)
    assert rates["blocks.1.norm1.weight"] == pytest.approx(5e-4)
    assert rates["patch_embed.proj.weight"] == pytest.approx(1.25e-4)
    assert trainer.callback_metrics["lr"] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multilabel": True, "loss": Loss(kind="softmax")}, r"model\.loss\.kind=sigmoid"),
        ({"loss": Loss(class_weights={"d": 2.0})}, "by name need classes"),
        ({"loss": Loss(class_weights="balanced")}, "class_weights=balanced needs counts"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"num_classes": 1}, "num_classes=1"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str, make_model) -> None:
    with pytest.raises(UserError, match=message):
        make_model(**options)
    assert make_model(num_classes=1, multilabel=True).num_classes == 1


@pytest.mark.parametrize(
    "callback",
    [
        BackboneFinetuning(),
        BatchSizeFinder(),
        GradientAccumulationScheduler({0: 2}),
        LearningRateFinder(),
        StochasticWeightAveraging(1e-3),
    ],
)
def test_callbacks_that_cannot_be_resumed_or_scored_are_refused(
    callback: Callback, make_data, make_model, make_trainer
) -> None:
    with pytest.raises(UserError, match=f"trainer.callbacks: .*{type(callback).__name__}"):
        make_trainer(max_epochs=1, callbacks=[callback]).fit(make_model(), make_data())


def test_imbalance_is_not_corrected_twice(make_data, make_model, make_trainer) -> None:
    data = make_data()
    data.sampling = Sampling(balanced=True)
    labels: dict[str, Any] = {"classes": data.classes, "counts": data.counts}
    both = make_model(**labels, loss=Loss(class_weights="balanced"))
    with pytest.raises(UserError, match="would correct imbalance twice"):
        make_trainer(max_epochs=1).fit(both, data)
    make_trainer(max_epochs=1).test(both, data, verbose=False)  # a test trains nothing
    make_trainer(max_epochs=1).fit(make_model(**labels), data)
    data.sampling = Sampling()
    make_trainer(max_epochs=1).fit(both, data)
