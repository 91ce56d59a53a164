"""Masked autoencoders: equal to transformers' ViTMAE, and the encoder sees kept patches alone."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.extensions.pretraining.conftest import ARCHITECTURES, PREFIX, TASKS, Make
from tests.extensions.pretraining.vit_mae import as_ours, peer_of
from vit.extensions.compute.flops import counting
from vit.extensions.pretraining.masked_autoencoder import MaskedAutoencoder
from vit.extensions.pretraining.masking import Corruption, from_patches
from vit.models.encoder import Place
from vit.weights.building import build_empty
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

pytestmark = pytest.mark.filterwarnings("ignore")

DECODER = TASKS["mae"][1]


@pytest.fixture
def make(make_task: Make) -> Make:
    return partial(make_task, "mae")


def loss_of(model: MaskedAutoencoder, images: torch.Tensor, corruption: Corruption) -> torch.Tensor:
    targets = model.targets(images)
    chosen = [row[indices] for row, indices in zip(targets, corruption.chosen, strict=True)]
    return model.target.loss(model(images, corruption), torch.stack(chosen))


@pytest.mark.parametrize("norm_pix", [True, False])
def test_loss_mask_and_gradients_are_those_of_transformers(norm_pix: bool, make: Make) -> None:
    shape = {"activation": "gelu", "layer_norm_eps": 1e-12}  # those of its configuration
    model = make(norm_pix=norm_pix, architecture=shape).double()
    peer = peer_of(model)
    images, noise = torch.randn(3, 3, 16, 16).double(), torch.rand(3, 16)
    corruption = model.draw(noise[:, None])
    theirs = peer(images, noise=noise)
    assert torch.equal(torch.zeros(3, 16).scatter(1, corruption.chosen, 1), theirs.mask)
    ours = loss_of(model, images, corruption)
    torch.testing.assert_close(ours, theirs.loss, rtol=1e-9, atol=0)
    ours.backward()
    theirs.loss.backward()
    expected = as_ours(peer, lambda parameter: parameter.grad)  # pyright: ignore
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert trained.keys() == expected.keys()
    for name, gradient in trained.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-7, atol=1e-12, msg=name)


def test_the_fixed_positions_are_those_of_the_official_code(make: Make) -> None:
    """Each half holds an axis, the columns first; frequencies 10,000^(-4i/width), as published."""
    model = make()
    tables = ((model.model.pos_embed, 16), (model.decoder.positions, 24))
    for table, width in tables:
        assert table is not None and not table.requires_grad
        omega = 10_000.0 ** -(np.arange(width // 4) / (width / 4))
        row, column = np.divmod(np.arange(16), 4)
        angles = (column[:, None] * omega, row[:, None] * omega)
        expected = np.concatenate([w(a) for a in angles for w in (np.sin, np.cos)], axis=1)
        assert not table[0, 0].any()
        np.testing.assert_allclose(table[0, 1:].numpy(), expected, atol=1e-6)


def test_a_table_of_positions_is_kept_from_weights_and_stays_fixed(
    make: Make, tmp_path: Path
) -> None:
    encoder = make().model
    with torch.no_grad():
        table = torch.nn.init.normal_(encoder.pos_embed)  # pyright: ignore
    save_native(tmp_path, encoder, classes=None, preprocess=None, extra={})
    again = MaskedAutoencoder.of(pretrained=str(tmp_path), image_size=16, **DECODER).model
    assert torch.equal(again.pos_embed, table)  # pyright: ignore
    assert not again.pos_embed.requires_grad  # pyright: ignore


def test_the_decoder_drops_nothing(make: Make) -> None:
    architecture = {"dropout": 0.5, "drop_path": 0.5, "layer_scale": 0.1}
    model = make(architecture=architecture).train()
    images = torch.randn(4, 3, 16, 16)
    prefix, patches = torch.randn(4, 1, 24), torch.randn(4, 16, 24)
    chosen = model.corruption(images).chosen
    with torch.no_grad():
        once, again = (
            model.decoder(prefix, patches, chosen, Place(4, 4, 1), False) for _ in range(2)
        )
    assert torch.equal(once, again)
    assert not any("gamma" in name for name, _ in model.decoder.named_parameters())


@pytest.mark.parametrize(
    "saved", ["transformers", "facebookresearch/mae", "facebookresearch/mae with decoder"]
)
def test_published_encoder_files_load_as_they_are(saved: str, make: Make, tmp_path: Path) -> None:
    shape = {"activation": "gelu", "layer_norm_eps": 1e-12 if saved == "transformers" else 1e-6}
    model = make(architecture=shape)
    peer, path = peer_of(model), tmp_path
    if saved == "transformers":
        peer.save_pretrained(tmp_path)
    else:  # the encoder under timm's names, without a head
        path = tmp_path / "mae_pretrain_vit_base.pth"
        state = model.model.state_dict()
        if "decoder" in saved:  # the names of models_mae.py
            state |= {
                "mask_token": torch.zeros(1, 1, 24),
                "decoder_pos_embed": torch.zeros(1, 17, 24),
            }
            for name, tensor in model.decoder.state_dict().items():
                part, _, rest = name.partition(".")
                state[f"decoder_{'pred' if part == 'predictor' else part}.{rest}"] = tensor
        torch.save({"model": state}, path)
    facts: Any = {} if path == tmp_path else {"num_heads": 2}
    loaded, report = load_pretrained(path, **facts)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(loaded.eval()(images), model.model.eval()(images))
    assert [*report.left_out] == ([] if saved == "facebookresearch/mae" else ["decoder"])
    # Pre-training goes on from it, and fine-tuning pools the patches and has a fresh norm.
    again = MaskedAutoencoder.of(pretrained=str(path), image_size=16, architecture=facts, **DECODER)
    state = again.model.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in model.model.state_dict().items())
    averaged: Any = {"pool": "gap", "norm_after_pool": True, "num_classes": 3, **facts}
    tuned, report = load_pretrained(path, **averaged)
    with torch.no_grad():
        patches = tuned._outputs(images, [1], 1)[1][:, 1:].mean(1)  # pyright: ignore
        pooled = torch.nn.functional.layer_norm(patches, (16,), eps=shape["layer_norm_eps"])
        torch.testing.assert_close(tuned.eval().forward_head(tuned.features(images), True), pooled)
    assert "norm" in report.left_out and tuned.pos_embed.requires_grad  # pyright: ignore


@pytest.mark.parametrize("architecture", ARCHITECTURES | PREFIX)
def test_the_encoder_sees_kept_patches_with_their_positions_and_nothing_else(
    architecture: str, make: Make
) -> None:
    encoder = make(architecture=(ARCHITECTURES | PREFIX)[architecture]).model.eval()
    prefix = encoder.num_prefix_tokens
    with torch.no_grad():
        patches, grid = encoder.embed(torch.randn(2, 3, 16, 16))
        whole = encoder.encode(patches, grid)
        orders = torch.stack([torch.randperm(16) for _ in range(2)])
        permuted = encoder.encode(patches, grid, keep=orders)
        for before, after, order in zip(whole, permuted, orders, strict=True):
            torch.testing.assert_close(after[prefix:], before[prefix:][order])
            torch.testing.assert_close(after[:prefix], before[:prefix])
        some = encoder.encode(patches, grid, keep=orders[:, :4])
        others = patches.clone()
        for image, order in zip(others, orders, strict=True):
            image[order[4:]] = torch.randn(12, 16)
        assert some.shape == (2, prefix + 4, 16)
        assert torch.equal(encoder.encode(others, grid, keep=orders[:, :4]), some)
        assert not torch.allclose(encoder.encode(patches, grid, keep=orders[:, 4:8]), some)


@pytest.mark.parametrize("mask_in_encoder", [False, True])
def test_predictions_depend_on_kept_patches_alone(mask_in_encoder: bool, make: Make) -> None:
    model = make(mask_in_encoder=mask_in_encoder).eval()
    images = torch.randn(2, 3, 16, 16)
    corruption = model.corruption(images)
    at, noise = torch.zeros(2, 16, 48), torch.randn(2, 16, 48)
    hidden = at.scatter(1, corruption.chosen[..., None].expand(-1, -1, 48), 1) * noise
    seen = at.scatter(1, corruption.seen[:, :1, None].expand(-1, -1, 48), 1) * noise
    with torch.no_grad():
        before = model(images, corruption)
        assert torch.equal(model(images + from_patches(hidden, (16, 16)), corruption), before)
        changed = model(images + from_patches(seen, (16, 16)), corruption)
        assert ((changed - before).abs().amax(-1) > 1e-6).all()


def full_size(name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> MaskedAutoencoder:
    """At the published size, on the meta device."""
    monkeypatch.setattr("vit.weights.pretrained.build_model", build_empty)
    with torch.device("meta"):
        return MaskedAutoencoder.of(name, architecture={"activation": "gelu"}, **options)


def test_parameters_with_both_tables_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = full_size("vit_b16", monkeypatch)
    assert [block.attn.num_heads for block in model.decoder.blocks] == [16] * 8
    tensors = [*model.parameters(), model.decoder.positions]
    assert sum(tensor.numel() for tensor in tensors) == 111_907_840


def test_operations_with_mask_tokens_in_the_encoder_over_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3.23 for L/16, where Table 1c has 3.3."""
    counts = []
    for mask_in_encoder in (True, False):
        model = full_size("vit_b16", monkeypatch, mask_in_encoder=mask_in_encoder).to("meta")
        images = torch.empty(1, 3, 224, 224, device="meta")
        with counting() as counter:
            model.training_loss((images,)).backward()
        counts.append(counter.get_total_flops())
    assert counts[0] / counts[1] == pytest.approx(2.35, abs=0.01)
