"""Our models by timm's contract answer as timm's of the same weights do."""

import copy
import json
import pickle
import sys
from math import floor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vit
from tests.models.small_models import BACKBONES, filled, random_images, small_bit, small_vit
from vit.errors import UserError
from vit.extensions.formats.published import table

timm = pytest.importorskip("timm")

PAIRS = {
    "vit_ti16": "vit_tiny_patch16_224",
    "deit_ti16_distilled": "deit_tiny_distilled_patch16_224",
    "r_vit_ti16": "vit_tiny_r_s16_p8_224",
    "bit_r50x1": "resnetv2_50x1_bit",
}
"""Our name -> timm's."""
every_pair = pytest.mark.parametrize(("ours", "theirs"), PAIRS.items(), ids=PAIRS)
every_backbone = pytest.mark.parametrize("build", BACKBONES.values(), ids=BACKBONES)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    vit.register_with_timm()


def pair(ours: str, theirs: str, folder: Path, **options: Any) -> tuple[Any, Any]:
    """Models of both packages with the same weights, by timm.create_model."""
    source = filled(timm.create_model(theirs, num_classes=7))
    torch.save(source.state_dict(), folder / "weights.pth")
    options |= {"pretrained": True, "num_classes": 7}
    options["pretrained_cfg_overlay"] = {"file": str(folder / "weights.pth"), "num_classes": 7}
    one, other = (timm.create_model(name, **options).eval() for name in (ours, theirs))
    return one, other


def images_for(ours: str) -> Tensor:
    """Images of the size that timm's model needs, or of a small one if any will do."""
    side = 64 if ours == "bit_r50x1" else 224
    return random_images(1, 3, side, side)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    scale = float(theirs.abs().max())
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * scale)


def test_all_models_are_in_the_registry_once() -> None:
    assert vit.register_with_timm() == vit.list_models()
    assert {*vit.list_models()} <= {*timm.list_models()}
    assert {*table()} <= {*timm.list_pretrained()}


def test_preparation_of_published_weights_is_that_of_timms_entry() -> None:
    rows = [row for row in table().values() if row.timm and not row.images]
    fields = ("mean", "std", "interpolation", "input_size", "num_classes", "first_conv")
    for row in rows:
        ours, theirs = (timm.get_pretrained_cfg(name) for name in (row.name, row.timm))
        for field in fields:
            one, other = (getattr(cfg, field) for cfg in (ours, theirs))
            assert one == other or tuple(one) == tuple(other), (row.name, field)
        resized = [floor(cfg.input_size[-1] / cfg.crop_pct) for cfg in (ours, theirs)]
        assert resized[0] == resized[1], row.name
    assert len(rows) > 40


@every_pair
@pytest.mark.parametrize("layers", [None, (1, -1)], ids=["default", "chosen"])
def test_maps_are_timms(ours: str, theirs: str, layers: Any, tmp_path: Path) -> None:
    chosen = {} if layers is None else {"out_indices": layers}
    # timm's own default of a hybrid are stages of its ResNet; ours are layers, as of every ViT.
    chosen |= {"feature_cls": "getter"} if ours != "bit_r50x1" else {}
    one, other = pair(ours, theirs, tmp_path, features_only=True, **chosen)
    images = images_for(ours)
    with torch.inference_mode():
        maps = one(images), other(images)
    for a, b in zip(*maps, strict=True):
        assert_same(a, b)
    infos = (one.feature_info, other.feature_info)
    assert infos[0].channels() == infos[1].channels() == [x.shape[1] for x in maps[0]]
    assert infos[0].reduction() == infos[1].reduction()


@every_pair
def test_a_model_is_timms_in_what_it_says_and_answers(
    ours: str, theirs: str, tmp_path: Path
) -> None:
    one, other = pair(ours, theirs, tmp_path)
    names = ["num_classes", "in_chans", "num_features", "head_hidden_size"]
    names += [] if ours == "bit_r50x1" else ["global_pool", "embed_dim"]  # which timm's lacks
    for name in names:
        assert getattr(one, name) == getattr(other, name), name
    for name in ("classifier", "first_conv", "pool_size", "input_size"):
        assert one.default_cfg.get(name) == other.default_cfg[name], name
    assert {info["module"] for info in one.feature_info} < {name for name, _ in one.named_modules()}
    depths = [
        timm.models._manipulate.group_parameters(model, model.group_matcher(), reverse=True)
        for model in (one, other)
    ]
    assert depths[0] == depths[1]
    images = images_for(ours)
    with torch.inference_mode():
        assert_same(one(images), other(images))
        if ours != "deit_ti16_distilled":  # timm's pools in any case
            for model in (one, other):
                model.reset_classifier(0, "")
            assert_same(one(images), other(images))
            assert one.num_classes == 0 and one.global_pool == ""


@every_backbone
def test_the_model_itself_gains_the_contract(build: Any, tmp_path: Path) -> None:
    model, images = build(), random_images(2, 3, 64, 64)
    plain = (model.num_classes, model.head_hidden_size, model.embed_dim)
    assert plain == (*model.head_layers[0].weight.shape[:2], model.features(images).shape[-1])
    before, names = model(images), [*model.state_dict()]
    contract = vit.as_timm(model)
    assert contract is model and [*contract.state_dict()] == names
    assert vit.as_timm(contract) is model and type(contract).__mro__.count(type(build())) == 1
    for twin in (contract, copy.deepcopy(contract), pickle.loads(pickle.dumps(contract))):
        assert torch.equal(twin(images), before)
        assert type(twin) is type(contract) and twin.default_cfg == contract.default_cfg
    contract.reset_classifier(5, "")
    assert vit.as_timm(model).global_pool == ""
    assert contract(images).shape[-1 if contract.num_prefix_tokens else 1] == 5


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("indices", [[0], [-2, 1], 1])
@every_backbone
def test_layers_that_no_output_needs_are_removed(build: Any, indices: Any, norm: bool) -> None:
    images, whole = random_images(1, 3, 64, 64), vit.as_timm(build())
    options: dict[str, Any] = {"norm": norm, "intermediates_only": True}
    expected = whole.forward_intermediates(images, indices, **options)
    pruned = vit.as_timm(build())
    wanted = pruned.prune_intermediate_layers(indices, prune_norm=not norm)
    maps = pruned.forward_intermediates(images, wanted, **options)
    torch.stack([x.square().sum() for x in maps]).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(maps, expected, strict=True))
    unused = [name for name, x in pruned.named_parameters() if x.grad is None]
    # A BiT's norm is of its last stage alone.
    assert unused == (
        ["norm.weight", "norm.bias"] if build is small_bit and norm and indices != 1 else []
    )


def test_a_model_that_timm_has_saved_is_read_by_timm(tmp_path: Path) -> None:
    model = filled(timm.create_model("vit_ti16", num_classes=3, img_size=64))
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = random_images(1, 3, 64, 64)
    assert torch.equal(again(images), model(images))
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=5).eval()
    assert torch.equal(other.forward_features(images), model.forward_features(images))
    assert other(images).shape == (1, 5)


def test_a_model_of_as_timm_is_saved_by_timm_with_its_name(tmp_path: Path) -> None:
    names = [vit.as_timm(vit.create_model(name)).default_cfg["architecture"] for name in PAIRS]
    assert names == [*PAIRS]
    model = filled(vit.as_timm(vit.create_model("vit_ti16", num_classes=3, image_size=(64, 96))))
    timm.models.save_for_hf(model, tmp_path / "named", safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path / 'named'}", pretrained=True).eval()
    images = random_images(1, 3, 64, 96)
    assert torch.equal(again(images), model.eval()(images))
    timm.models.save_for_hf(vit.as_timm(small_vit()), tmp_path / "small", safe_serialization=True)
    record = json.loads((tmp_path / "small/config.json").read_text())
    assert record["architecture"] == ""


def test_the_size_of_images_changes_in_place() -> None:
    model = vit.as_timm(small_vit())
    images, resized = random_images(1, 3, 48, 64), copy.deepcopy(model)
    resized.set_input_size((48, 64))
    assert resized.config.size == (48, 64) and resized.pos_embed.shape[1] == 1 + 6 * 8
    assert torch.equal(resized(images), model(images))
    vit.as_timm(small_bit()).set_input_size(48)


def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not Linear"):
        vit.as_timm(torch.nn.Linear(1, 1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="global_pool='avg' is not one of '', 'token'"):
        timm.create_model("vit_ti16", global_pool="avg")
    with pytest.raises(UserError, match="no dropout here before the head"):
        timm.create_model("vit_ti16", drop_rate=0.1)
    with pytest.raises(UserError, match="feature_cls='fx' is not one of getter, list"):
        timm.create_model("vit_ti16", features_only=True, feature_cls="fx")
    with pytest.raises(TypeError, match="embed_dims"):
        timm.create_model("vit_ti16", embed_dims=3)
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.delitem(sys.modules, "timm.models")
    with pytest.raises(UserError, match=r"timm.* is not installed: pip install 'vitkit\[peers\]'"):
        vit.register_with_timm()


@pytest.mark.parametrize(("network", "encoder"), [("Unet", "bit_r50x1"), ("DPT", "vit_ti16")])
def test_another_package_trains_a_network_on_our_encoder(network: str, encoder: str) -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    torch.manual_seed(0)
    model = getattr(smp, network)(f"tu-{encoder}", encoder_weights=None, classes=1)
    before = copy.deepcopy(model.encoder.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(random_images(2, 3, 64, 64)).square().mean().backward()
    optimizer.step()
    changed = [name for name, x in model.encoder.state_dict().items() if (x != before[name]).any()]
    assert len(changed) > 0.9 * len(before)
