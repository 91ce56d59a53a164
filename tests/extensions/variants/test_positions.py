"""Positions: against timm, BEiT and transformers; how they are named, and mistakes."""

from typing import Any

import pytest
import torch

import vit
from tests.extensions.variants.test_contract import SIZE, built
from tests.models.small_models import SMALL, filled, random_images, relative_error
from vit.errors import UserError
from vit.extensions import inspection
from vit.extensions.adaptation.lora import add_lora
from vit.extensions.formats.convert import convert
from vit.extensions.inspection.gradients import _relevance
from vit.extensions.variants.relative import _slopes
from vit.models.config import ViTConfig
from vit.models.zoo import build_model
from vit.training.optimizers.param_groups import param_groups
from vit.weights.native import save_native


def test_a_beit_with_these_weights_is_the_model_with_a_bias_table() -> None:
    beit = pytest.importorskip("timm.models.beit")
    sizes: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
    theirs = filled(
        beit.Beit(
            **sizes, num_heads=4, mlp_ratio=2, num_classes=7, global_pool="token",
            use_abs_pos_emb=False, use_rel_pos_bias=True, init_values=None,
        )
    )  # fmt: skip
    state = {}
    for key, value in theirs.state_dict().items():
        layer = key.rpartition(".attn.")[0]
        if key.endswith("q_bias"):
            zeros = torch.zeros_like(value)
            v_bias = theirs.state_dict()[f"{layer}.attn.v_bias"]
            state[f"{layer}.attn.qkv.bias"] = torch.cat([value, zeros, v_bias])
        elif not key.endswith("v_bias"):
            state[key.replace(".attn.relative", ".attn.rel_pos.relative")] = value
    fields: dict[str, Any] = {**SMALL, "depth": 2, "activation": "gelu"}
    ours = build_model(ViTConfig(**fields, variant={"positions": {"name": "bias_table"}}))
    ours.load_state_dict(state)
    images = random_images(3, 3, 32, 32)
    assert relative_error(ours.eval()(images), theirs(images)) < 1e-5


@pytest.mark.parametrize("heads", [3, 4, 6, 12, 16])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mask = torch.ones(1, 2)  # a distance of 1 between two tokens
    theirs = bloom.build_alibi_tensor(mask, heads, torch.float32)[:, 0, 1]
    assert relative_error(torch.tensor(_slopes(heads)), theirs) < 1e-6


@pytest.mark.parametrize("name", ["relative", "shaw", "bias_table", "alibi"])
def test_attention_maps_and_relevance_are_those_that_the_model_computes(name: str) -> None:
    model = built("positions", name, {}, pool="cls").double()
    images = random_images(1, 3, *SIZE, dtype=torch.float64)
    taken: list[Any] = []
    layer: Any = model.blocks[1].attn
    weights = inspection.attention(model, images, [1])[:, 0].requires_grad_()
    hook = layer.register_forward_pre_hook(lambda _, inputs: taken.extend(inputs))
    model(images)
    hook.remove()
    x, place = taken
    mixed = weights @ layer.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)[2]
    if name == "shaw":
        mixed = mixed + layer.rel_pos.value_sums(weights, place)
    output = layer.proj(mixed.transpose(1, 2).flatten(2))
    assert relative_error(output, layer(x, place)) < 1e-12
    grad = random_images(*output.shape).double()
    [by_weights] = torch.autograd.grad(output, weights, grad)
    expected = (by_weights * weights).clamp_min(0).mean(1)
    with torch.no_grad():
        assert relative_error(_relevance(layer, (x, place), grad), expected) < 1e-12


def test_similarity_of_positions_is_that_of_the_stems_table() -> None:
    model = built("positions", "learned2d", {})
    table = torch.nn.functional.normalize(model.positions((4, 6))[0], dim=-1)
    similarity = inspection.position_similarity(model).flatten(2).flatten(0, 1)
    assert relative_error(similarity, table @ table.T) < 1e-6
    with pytest.raises(UserError, match=r"no position embeddings .variant=.*'alibi'"):
        inspection.position_similarity(built("positions", "alibi", {}))


def test_tables_do_not_decay_and_layers_keep_their_rates() -> None:
    model = built("positions", "learned", {"where": "layers"})
    add = built("positions", "relative", {})
    for network, part in ((model, "blocks.1.positions.position_table"),
                          (add, "blocks.1.attn.rel_pos.offset_table")):  # fmt: skip
        tables = network.no_weight_decay()
        options: dict[str, Any] = {"layer_decay": 0.5, "no_weight_decay": tables}
        groups = param_groups(network.named_parameters(), depth=2, **options)
        [group] = [g for g in groups if part in g["names"]]
        assert group["weight_decay"] == 0 and group["lr_scale"] == 0.5
    add_lora(add, 2)
    trained = [key for key, p in add.named_parameters() if p.requires_grad]
    assert any("blocks.0.attn.qkv.lora_a" in key for key in trained)


def test_a_model_without_attention_and_other_formats_are_refused(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="unknown model option"):
        vit.create_model("bit_r50x1", variant={"positions": {"name": "none"}})
    save_native(tmp_path, built("positions", "shaw", {}), classes=None, preprocess=None, extra={})
    outputs = {"timm": "out", "huggingface": "out", "google": "out.npz", "torchvision": "out.pth"}
    for to, name in outputs.items():
        with pytest.raises(UserError, match=r"has no .*variant=.*'shaw'") as caught:
            convert(tmp_path, tmp_path / name, to)
        assert "\n" not in str(caught.value)
