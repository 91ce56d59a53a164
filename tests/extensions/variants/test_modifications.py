"""Feed-forwards, norms, residuals and stacks: against torch and transformers, and mistakes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.extensions.variants.test_contract import SIZE, built
from tests.models.small_models import SMALL, filled, random_images, relative_error
from vit.errors import UserError
from vit.extensions import inspection
from vit.extensions.adaptation.lora import add_lora
from vit.extensions.variants.experts import BALANCE, Experts, ExpertsOptions, balance_loss
from vit.models.config import ViTConfig
from vit.models.encoder import Place
from vit.models.zoo import build_model
from vit.training.image_classifier import ImageClassifier

PLACE = Place(4, 6, 0)


def small(**fields: Any) -> Any:
    """A small model with parts, in evaluation mode with random weights everywhere."""
    return filled(build_model(ViTConfig(**{**SMALL, **fields})))


def variant(**parts: str) -> dict[str, Any]:
    return {kind: {"name": name} for kind, name in parts.items()}


@pytest.mark.parametrize("name", ["rezero", "fixup"])
def test_layers_that_start_at_nothing_leave_their_input_and_norms_are_added_by_name(
    name: str,
) -> None:
    sizes: dict[str, Any] = {**SMALL, "depth": 2}
    model: Any = build_model(ViTConfig(**sizes, variant=variant(residual=name)))
    x = random_images(2, 24, 32)
    for layer in model.blocks:
        assert torch.equal(layer(x, PLACE), x)
        assert isinstance(layer.norm1, nn.Identity) and isinstance(layer.norm2, nn.Identity)
    for norm, kind in (("layer", nn.LayerNorm), ("rms", nn.RMSNorm)):
        model = build_model(ViTConfig(**sizes, variant=variant(norm=norm, residual=name)))
        assert all(isinstance(layer.norm2, kind) for layer in model.blocks)
        assert not any(layer(x, PLACE).sub(x).any() for layer in model.blocks)


def test_fixup_scales_the_first_matrix_by_the_number_of_branches() -> None:
    models = []
    for part in ({}, variant(residual="fixup")):
        torch.manual_seed(0)
        models.append(build_model(ViTConfig(**{**SMALL, "depth": 8}, variant=part)))
    plain, fixup = (model.state_dict() for model in models)
    for key in ("blocks.3.attn.qkv.weight", "blocks.7.mlp.fc1.weight"):
        assert relative_error(fixup[key], plain[key] / 4) < 1e-6
    assert all(value == 1 for key, value in fixup.items() if key.endswith("gamma"))


@pytest.fixture
def switch() -> tuple[Any, Any, Experts, Tensor]:
    """transformers' router and experts, ours with the same weights, and tokens."""
    peer = pytest.importorskip("transformers.models.switch_transformers")
    sizes: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_experts": 4, "expert_capacity": 6}
    config = peer.SwitchTransformersConfig(
        **sizes, dropout_rate=0.0, dense_act_fn="gelu_new", router_jitter_noise=0.0
    )
    theirs = filled(peer.modeling_switch_transformers.SwitchTransformersSparseMLP(config))
    ours = Experts(ViTConfig(**SMALL), ExpertsOptions(capacity=1.0))  # 6 of 24 tokens
    with torch.no_grad():
        ours.router.weight.copy_(theirs.router.classifier.weight)
        for i, expert in enumerate(ours.experts):
            other = theirs.experts[f"expert_{i}"]
            expert.load_state_dict(
                {
                    "fc1.weight": other.wi.weight, "fc1.bias": torch.zeros(64),
                    "fc2.weight": other.wo.weight, "fc2.bias": torch.zeros(32),
                }
            )  # fmt: skip
    module = peer.modeling_switch_transformers
    return theirs, module.load_balancing_loss_func, ours, random_images(3, 24, 32)


def test_the_choice_of_an_expert_and_its_output_are_those_of_switch_transformers(
    switch: tuple[Any, Any, Experts, Tensor],
) -> None:
    theirs, balance, ours, x = switch
    with torch.no_grad():
        mask, gates, _ = theirs.router(x)
        p = ours.probabilities(x)
        found, chosen = p.topk(1, dim=-1)
        places, c = ours.places(chosen)
        assert relative_error(found, gates) < 1e-6
        assert c == 6
        taken = nn.functional.one_hot(places[:, 0], 4 * c + 1)[..., :-1].unflatten(-1, (4, c))
        assert torch.equal(taken.sum(-1), mask)
        assert taken.sum(1).max() == 1  # a place has one token
        dropped = mask.sum(-1) == 0
        assert 0 < dropped.sum() < dropped.numel()
        y = ours(x)
        assert not y[dropped].any()
        assert relative_error(y, theirs(x)) < 1e-5
        assert balance_loss(p, chosen).item() == pytest.approx(balance(p, chosen[..., 0]).item())


def test_the_balance_loss_is_one_for_even_use_and_the_number_of_experts_for_one_alone() -> None:
    even = torch.arange(24).remainder(4)[None, :, None]
    assert balance_loss(torch.full((1, 24, 4), 0.25), even).item() == pytest.approx(1)
    one = torch.zeros(1, 24, 4)
    one[..., 2] = 1
    assert balance_loss(one, torch.full((1, 24, 1), 2)).item() == pytest.approx(4)


def test_experts_are_chosen_in_float32_also_under_autocast() -> None:
    layer, x = Experts(ViTConfig(**SMALL), ExpertsOptions()), random_images(3, 24, 32).bfloat16()
    nn.init.normal_(layer.router.weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.probabilities(x)
    expected = (x.double() @ layer.router.weight.double().T).softmax(-1)
    assert found.dtype == torch.float32 and relative_error(found, expected) < 1e-6


def test_a_capacity_beyond_all_tokens_costs_no_more_and_drops_none() -> None:
    x = random_images(2, 24, 32)
    layers = [Experts(ViTConfig(**SMALL), ExpertsOptions(capacity=c)) for c in (4.0, 10**20)]
    layers[1].load_state_dict(filled(layers[0]).state_dict())
    assert torch.equal(layers[0](x), layers[1](x))
    assert layers[1].places(torch.zeros(2, 24, 1, dtype=torch.long))[1] == 24


@pytest.mark.parametrize("recompute", [False, True])
def test_penalties_reach_the_routers_once_and_only_in_training(recompute: bool) -> None:
    model = built("mlp", "experts", {"chosen": 2}).double()
    model.set_grad_checkpointing(recompute)
    images = random_images(4, 3, *SIZE, dtype=torch.float64)
    model(images)
    assert model.auxiliary_loss() == 0

    def gradient(*batches: Tensor) -> Tensor:
        model.zero_grad()
        for batch in batches:
            loss = 0 * model.train()(batch).sum() + model.auxiliary_loss()
            (loss / len(batches)).backward()
        return torch.cat([layer.mlp.router.weight.grad.flatten() for layer in model.blocks])

    whole = gradient(images)
    assert whole.norm() > 0
    assert relative_error(gradient(*images.split(2)), whole) < 1e-12
    seen: list[Tensor] = []
    for layer in model.blocks:
        layer.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    total = 0 * model(images).sum() + model.auxiliary_loss()
    assert model.auxiliary_loss() == 0
    expected = 0.0
    for layer, x in zip(model.blocks, seen, strict=True):
        p = layer.mlp.probabilities(x)
        expected += BALANCE * balance_loss(p, p.topk(2).indices).item()
    assert total.item() == pytest.approx(expected)


def test_the_balance_loss_is_part_of_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ImageClassifier.of(
        "vit_ti16", num_classes=3, image_size=32,
        architecture={**{k: v for k, v in SMALL.items() if k not in ("image_size", "num_classes")},
                      "variant": variant(mlp="experts")},
    )  # fmt: skip
    monkeypatch.setattr(module, "log", lambda *args, **options: None)
    monkeypatch.setattr(ImageClassifier, "trainer", None)
    batch = random_images(4, 3, 32, 32), torch.tensor([0, 1, 2, 0])
    plain = module.training_loss(batch).item()
    penalties = sum(layer.mlp.penalty.item() for layer in module.model.blocks)  # pyright: ignore
    assert penalties > 0.9 * BALANCE * 3
    monkeypatch.setattr("vit.training.network_training.is_logged", lambda trainer: False)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1)]
    trainer: Any = type("T", (), {"optimizers": optimizers, "global_step": 0})
    monkeypatch.setattr(ImageClassifier, "trainer", trainer)
    assert module.training_step(batch, 0).item() == pytest.approx(plain + penalties)


def test_shared_layers_are_saved_once_and_all_updates_are_theirs() -> None:
    model = built("stack", "shared", {}, depth=3)
    assert {key.split(".")[1] for key in model.state_dict() if key.startswith("blocks.")} == {"0"}
    add_lora(model, 2)
    assert sum("qkv.lora_a" in key for key, _ in model.named_parameters()) == 1


def test_maps_of_a_funnel_are_of_its_own_grid() -> None:
    model = built("stack", "funnel", {"stages": 2}, depth=3)
    images = random_images(2, 3, *SIZE)
    first, *others = model.intermediate_layers(images, 3)
    assert first.shape == (2, 32, 4, 6)
    assert [tuple(x.shape[2:]) for x in others] == [(4, 6), (2, 3)]
    assert [info["reduction"] for info in model.feature_info] == [8, 8, 16]
    last, maps = model.forward_intermediates(images, norm=True)
    assert torch.equal(maps[-1], others[-1]) and last.shape == (2, 3 + 6, 32)
    similar = inspection.patch_similarity(model, images, (1, 2))
    assert similar.shape == (2, 2, 3) and similar[:, 1, 2].min() > 1 - 1e-5


def test_a_funnel_halves_its_grid_once_for_each_stage() -> None:
    sizes: dict[str, Any] = {"depth": 6, "image_size": (64, 32)}
    model = built("stack", "funnel", {"stages": 3}, **sizes)
    maps = model.intermediate_layers(random_images(1, 3, 64, 32), 6)
    assert [tuple(x.shape[2:]) for x in maps] == [(8, 4)] * 2 + [(4, 2)] * 2 + [(2, 1)] * 2


@pytest.mark.parametrize("name", ["shared", "funnel"])
def test_attention_maps_are_refused_where_layers_are_not_their_own(name: str) -> None:
    model, images = built("stack", name, {}), random_images(1, 3, *SIZE)
    looks: list[Callable[..., Any]] = [inspection.attention, inspection.gradient_rollout]
    for look in looks:
        with pytest.raises(UserError, match=r"no variant\.stack"):
            look(model, images)


def test_parts_of_all_kinds_go_together() -> None:
    parts = variant(mlp="geglu", residual="rezero", norm="rms", stack="funnel")
    model = small(variant=parts)
    model(random_images(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    assert isinstance(model.blocks[2].layer.norm1, nn.RMSNorm)
    none = small(variant=variant(mlp="none", norm="rms"))
    none(random_images(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in none.parameters())
