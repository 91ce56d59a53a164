"""`accelerate` changes how a model computes, and nothing else about it."""

import copy
import pickle

import pytest
import torch

import vit
from tests.kernels.fixing import every_route
from tests.models.small_models import (
    random_images,
    relative_error,
    small_bit,
    small_hybrid,
    small_vit,
)
from vit.kernels import dense
from vit.kernels.routes import PLAIN, recorded_choices
from vit.models.encoder import Attention, Mlp


@pytest.mark.parametrize("build", [small_vit, small_hybrid, small_bit])
def test_the_model_is_the_same_but_for_rounding(build) -> None:
    model, images = build().eval(), random_images(2, 3, 64, 64)
    keys, expected = list(model.state_dict()), model(images)
    assert vit.accelerate(model) is model
    with every_route("onednn", "products"):
        assert relative_error(model(images), expected) < 1e-5
        assert relative_error(copy.deepcopy(model)(images), expected) < 1e-5
        assert relative_error(pickle.loads(pickle.dumps(model))(images), expected) < 1e-5
    assert list(model.state_dict()) == keys
    assert torch.equal(vit.plain(model)(images), expected)


def test_both_can_be_repeated() -> None:
    model = small_vit()
    classes = [type(module) for module in model.modules()]
    vit.accelerate(vit.accelerate(model))
    fast = [type(module) for module in model.modules()]
    assert fast != classes
    assert all(issubclass(a, b) for a, b in zip(fast, classes, strict=True))
    vit.plain(vit.plain(model))
    assert [type(module) for module in model.modules()] == classes


def test_a_plain_model_asks_for_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "route_of", lambda *_: pytest.fail("a route was asked for"))
    model = small_vit()
    model(random_images(2, 3, *model.config.size)).sum().backward()


def test_a_layer_of_another_class_is_left_alone() -> None:
    class Own(Mlp):
        """A user's layer."""

    model = small_vit()
    own = model.blocks[0].mlp
    own.__class__ = Own
    vit.accelerate(model)
    assert type(own) is Own
    assert type(model.blocks[0].attn) is not Attention


def test_no_test_measures_what_it_does_not_ask_for() -> None:
    # The record of tests/conftest.py is in the form that is read.
    recorded = recorded_choices()
    assert {choice.route for choice in recorded.values()} == {PLAIN}
    assert "dense.float32.training.wide" in recorded
