"""Steps and final weights by the size of the set."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn

from tests.grouped import tuned
from vit.errors import UserError
from vit.extensions.adaptation.lora import LoRA, LoraLinear, merge_lora
from vit.extensions.recipes.ema import EMA
from vit.extensions.variants.convolutional_stem import BatchNorm
from vit.fine_tuning import FIXED_SHARE, SHARES, steps_for
from vit.training.callbacks import by_size
from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.callbacks.linear_probe import LinearProbe

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("images", "steps"),
    [(50, 43), (200, 85), (245, 94), (1_000, 190), (5_000, 469), (50_000, 4688)],
)
def test_the_steps_of_the_rule_are_those_of_its_formula(images: int, steps: int) -> None:
    assert steps_for(images, 32) == steps == math.ceil(max(192 * images**0.5, 3 * images) / 32)
    assert steps_for(images, 64) == math.ceil(max(192 * images**0.5, 3 * images) / 64)


@pytest.fixture
def weights(save_weights) -> str:
    return save_weights("xyz")


class Ends(Callback):
    """The weights before the first step and after the last one."""

    def __init__(self) -> None:
        self.ends: list[dict[str, torch.Tensor]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.ends.append({n: t.clone() for n, t in pl_module.model.state_dict().items()})

    on_train_end = on_train_start


def test_the_result_is_the_fixed_average_of_the_two_ends(
    weights: str, make_data, make_trainer, capsys
) -> None:
    model, ends, rule = tuned(weights), Ends(), FineTuneBySize()
    trainer = make_trainer(max_epochs=-1, callbacks=[LinearProbe(), rule, ends])
    trainer.fit(model, make_data(batch_size=44))
    assert trainer.global_step == rule.chosen["steps"] == math.ceil(192 * 44**0.5 / 44)
    first, last = ends.ends
    assert first["head.weight"].abs().sum() > 0  # the fitted head
    for name, value in model.model.state_dict().items():
        expected = 0.25 * first[name].numpy() + 0.75 * last[name].numpy()
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)
    assert FIXED_SHARE == rule.chosen["share"] == 0.75
    printed = capsys.readouterr().err
    assert "44 training images, 29 steps of 44" in printed and "75% of the last" in printed


def test_enough_validation_images_choose_the_share(
    weights: str, make_data, make_trainer, monkeypatch
) -> None:
    monkeypatch.setattr(by_size, "ENOUGH_TO_CHOOSE", 9)
    model, ends, rule, data = tuned(weights), Ends(), FineTuneBySize(), make_data()
    trainer = make_trainer(max_epochs=-1, max_steps=12, callbacks=[rule, ends])
    trainer.fit(model, data)
    assert rule.chosen["steps"] == 12 and rule.chosen["val_images"] == 9
    losses = {}
    other = tuned(weights).eval()
    for share in SHARES:
        first, last = ({n: t.double() for n, t in end.items()} for end in ends.ends)
        state = {n: (first[n] + share * (last[n] - first[n])).float() for n in first}
        other.model.load_state_dict(state)
        images, labels, _ = zip(*data.evaluation_loader("val"), strict=True)
        with torch.inference_mode():
            logits = other(data.preprocess.normalize(torch.cat(images)))
        losses[share] = float(nn.functional.cross_entropy(logits, torch.cat(labels)))
    assert rule.chosen["share"] == min(losses, key=losses.__getitem__)
    recorded = {float(share): loss for share, loss in rule.chosen["val_losses"].items()}
    assert recorded == pytest.approx(losses, abs=2e-4)


@pytest.mark.parametrize("limit", [{"max_steps": 3, "max_epochs": -1}, {"max_epochs": 1}])
def test_a_limit_of_the_run_wins(
    limit: dict[str, int], weights: str, make_data, make_trainer
) -> None:
    rule = FineTuneBySize()
    trainer = make_trainer(callbacks=[rule], **limit)
    trainer.fit(tuned(weights), make_data())
    assert trainer.global_step == limit.get("max_steps", 5)
    assert rule.chosen["steps"] == trainer.global_step


def test_statistics_of_a_batch_norm_are_averaged_with_the_weights(make_model: Any) -> None:
    """Share 0 is the network before the first step."""
    module = make_model()
    module.stem = BatchNorm(3)
    start = {name: value.detach().clone() for name, value in by_size._trained(module)}
    module.stem(torch.rand(4, 3, 2, 2) + 1)
    assert module.stem.running_mean.min() > 0
    end = {name: value.detach().clone() for name, value in by_size._trained(module)}
    for share in (0.0, 0.5, 1.0):
        by_size._average(module, start, end, share)
        expected = start["stem.running_var"].lerp(end["stem.running_var"], share)
        torch.testing.assert_close(module.stem.running_var, expected)


def test_random_first_weights_are_not_averaged(make_data, make_model, make_trainer) -> None:
    model, ends, rule = make_model(), Ends(), FineTuneBySize()
    make_trainer(max_epochs=-1, max_steps=3, callbacks=[rule, ends]).fit(model, make_data())
    assert rule.chosen["share"] == 1.0
    for name, value in model.model.state_dict().items():
        torch.testing.assert_close(value, ends.ends[1][name])


def test_lora_is_averaged_as_merged_weights(weights: str, make_data, make_trainer) -> None:
    model, ends = tuned(weights, adaptation=LoRA(2)), Ends()
    make_trainer(max_epochs=-1, max_steps=5, callbacks=[FineTuneBySize(), ends]).fit(
        model, make_data()
    )
    layer = model.model.blocks[1].mlp.fc1
    assert isinstance(layer, LoraLinear)
    last = ends.ends[1]
    a, b = (last[f"blocks.1.mlp.fc1.lora_{factor}"][0] for factor in "ab")
    expected = last["blocks.1.mlp.fc1.weight"] + 0.75 * b @ a
    assert (b @ a).abs().max() > 1e-3
    merge_lora(model.model)
    torch.testing.assert_close(layer.weight.detach(), expected)


def test_a_killed_run_ends_with_the_same_average(
    weights: str, make_data, make_trainer, losses, tmp_path: Path, continues_bitwise
) -> None:
    def run(record: Any, resume: Path | None = None) -> Any:
        model = tuned(weights)
        keep = ModelCheckpoint(
            dirpath=tmp_path / "kept", save_top_k=-1, filename="{step}", every_n_train_steps=2
        )
        callbacks = [LinearProbe(), FineTuneBySize(), record, keep]
        trainer = make_trainer(max_epochs=-1, max_steps=12, callbacks=callbacks)
        trainer.fit(model, make_data(), ckpt_path=resume)
        return model

    expected = run(losses())
    finished = tmp_path / "kept" / "step=12.ckpt"
    again = run(losses(), resume=finished)  # nothing is left to train
    for name, value in expected.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    continues_bitwise(run, 8)


def test_two_choices_of_the_result_are_refused(weights: str, make_data, make_trainer) -> None:
    trainer = make_trainer(max_epochs=-1, max_steps=3, callbacks=[EMA(0.9), FineTuneBySize()])
    with pytest.raises(UserError, match="leave one out"):
        trainer.fit(tuned(weights), make_data())
