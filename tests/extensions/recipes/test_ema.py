"""The average of the weights is the closed form, and checkpoints have both kinds of weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from safetensors.torch import load_file

from tests.command import Vit, photos, saved, vit
from vit.errors import UserError
from vit.extensions.adaptation.distillation import Distillation
from vit.extensions.recipes.ema import EMA
from vit.training.losses import Loss

__all__ = ["photos", "vit"]
pytestmark = pytest.mark.filterwarnings("ignore")


class Trace(Callback):
    """The raw weights after every optimizer step, and what validation saw."""

    def __init__(self) -> None:
        self.raw: list[torch.Tensor] = []
        self.validated: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        if trainer.global_step > len(self.raw):
            self.raw.append(flat(model))

    def on_validation_batch_start(self, trainer: Any, model: Any, *_: Any) -> None:
        self.validated.append(flat(model))


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def averaged(first: torch.Tensor, raw: list[torch.Tensor], decay: float) -> torch.Tensor:
    """tf.train.ExponentialMovingAverage with num_updates, written out."""
    average = first
    for t, weights in enumerate(raw, start=1):
        keep = min(decay, (1 + t) / (10 + t))
        average = keep * average + (1 - keep) * weights
    return average


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_is_the_closed_form(
    accumulate: int, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    model, trace = make_model(), Trace()
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last", every_n_epochs=1)
    first = flat(model)
    trainer = make_trainer(
        max_epochs=2,
        accumulate_grad_batches=accumulate,
        callbacks=[EMA(decay=0.4), trace, keep],  # 0.4 is reached at the fifth step
    )
    trainer.fit(model, data := make_data())
    expected = averaged(first, trace.raw, 0.4)
    assert len(trace.raw) == trainer.global_step
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-7)
    assert (expected - trace.raw[-1]).abs().max() > 1e-5
    half = trace.raw[: trainer.global_step // 2]
    torch.testing.assert_close(trace.validated[0], averaged(first, half, 0.4), rtol=0, atol=1e-7)

    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    names = [name for name, _ in model.named_parameters()]
    assert all(torch.equal(checkpoint["state_dict"][n], model.state_dict()[n]) for n in names)
    raw = torch.cat([checkpoint["current_model_state"][n].double().flatten() for n in names])
    assert torch.equal(raw, trace.raw[-1])
    assert checkpoint["vit"]["weights"] == "ema"
    before = flat(model)
    trainer.validate(model, data, verbose=False)
    trainer.test(model, data, verbose=False)
    assert torch.equal(flat(model), before), "the average stays when the run is over"


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-true", 2e-3), ("64-true", 1e-7)])
def test_weights_of_other_precision_are_averaged_in_float32(
    precision: str, tolerance: float, make_data, make_model, make_trainer
) -> None:
    model, trace = make_model(), Trace()
    first = flat(model)
    trainer = make_trainer(max_epochs=2, precision=precision, callbacks=[EMA(0.99), trace])
    trainer.fit(model, make_data())
    expected = averaged(first, trace.raw, 0.99)
    torch.testing.assert_close(flat(model), expected, rtol=2e-2, atol=tolerance)


def test_statistics_of_a_batch_norm_are_those_of_the_run(
    make_data, make_model, make_trainer
) -> None:
    class Watched(Callback):
        def on_train_end(self, trainer: Any, model: Any) -> None:
            self.statistics = [b.clone() for b in model.buffers()]

    stem = {"stem": {"name": "convolutions", "widths": [8], "window": 2}}
    model, watched = make_model(architecture={"patch_size": 4, "variant": stem}), Watched()
    first = [b.clone() for b in model.buffers()]
    make_trainer(max_epochs=2, callbacks=[EMA(0.9), watched]).fit(model, make_data())
    assert any(not torch.equal(*pair) for pair in zip(first, watched.statistics, strict=True))
    for copied, current in zip(model.buffers(), watched.statistics, strict=True):
        assert torch.equal(copied, current)


def test_a_checkpoint_at_the_very_end_has_the_raw_weights(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    trace = Trace()
    keep = ModelCheckpoint(dirpath=tmp_path, save_last=True, every_n_train_steps=1000)
    make_trainer(max_steps=3, callbacks=[EMA(0.9), trace, keep]).fit(make_model(), make_data())
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    raw = [checkpoint["current_model_state"][n] for n, _ in make_model().named_parameters()]
    assert torch.equal(torch.cat([r.double().flatten() for r in raw]), trace.raw[-1])


def test_an_exception_in_validation_does_not_exchange_average_and_raw(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    class Fail(Callback):
        def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
            raise KeyError("broken")

    trace, model = Trace(), make_model()
    first = flat(model)
    keep = ModelCheckpoint(dirpath=tmp_path, filename="at", save_on_exception=True)
    trainer = make_trainer(max_epochs=1, callbacks=[EMA(0.9), trace, Fail(), keep])
    with pytest.raises(KeyError):
        trainer.fit(model, make_data())
    [file] = tmp_path.glob("*.ckpt")
    checkpoint = torch.load(file, weights_only=True)
    names = [name for name, _ in model.named_parameters()]
    for key, expected in (
        ("current_model_state", trace.raw[-1]),
        ("state_dict", averaged(first, trace.raw, 0.9)),
    ):
        actual = torch.cat([checkpoint[key][n].double().flatten() for n in names])
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)


def test_an_averaged_run_is_not_continued_without_its_average(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last", every_n_epochs=1)
    make_trainer(max_epochs=1, callbacks=[EMA(), keep]).fit(make_model(), make_data())
    with pytest.raises(UserError, match="the checkpoint is of a run with EMA"):
        make_trainer(max_epochs=2).fit(make_model(), make_data(), ckpt_path=tmp_path / "last.ckpt")
    make_trainer().test(make_model(), make_data(), ckpt_path=tmp_path / "last.ckpt", verbose=False)


def test_a_probe_keeps_the_head_that_it_has_fitted(vit: Vit, photos: Path) -> None:
    saved(Path("pre"), None)
    words = ("fit", "-c", "probe", "--data", photos, "--pretrained=pre")
    options = ("--trainer.accelerator=cpu", "--data.loading.num_workers=0")
    heads = []
    for run, more in (("plain", ()), ("averaged", ("--trainer.callbacks+=vit.EMA",))):
        done = vit(*words, *options, *more, f"--run_dir={run}")
        assert done.status == 0, done.err
        heads.append(load_file(f"{run}/model/model.safetensors")["head.weight"])
    assert torch.equal(*heads) and heads[0].any()


def test_decay_is_checked() -> None:
    with pytest.raises(UserError, match=r"decay=1.0 must be in \[0, 1\)"):
        EMA(1.0)


def test_features_of_a_teacher_are_refused(
    make_model: Any, make_data: Any, make_trainer: Any
) -> None:
    """The projection of the features is made after the average."""
    loss = Loss(teacher=Distillation("weights", features="cosine"))
    trainer = make_trainer(max_steps=1, callbacks=[EMA(0.9)])
    with pytest.raises(
        UserError, match=r"vit\.EMA does not go with model\.loss\.teacher\.features"
    ):
        trainer.fit(make_model(loss=loss), make_data())
