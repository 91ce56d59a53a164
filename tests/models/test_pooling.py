"""Attention pooling against torch's own multi-head attention."""

import torch
from torch import nn

from tests.models.small_models import filled, random_images, relative_error
from vit.models.pooling import AttentionPool


def test_map_is_a_probe_attending_then_a_residual_mlp() -> None:
    # big_vision, models/vit.py, MAPHead: x = MHA(probe, x); x + MLP(LN(x)).
    pool = filled(AttentionPool(24, 3, 40, nn.LayerNorm(24, eps=1e-6), "gelu_tanh")).double()
    attention = nn.MultiheadAttention(24, 3, batch_first=True).double()
    attention.load_state_dict(
        {
            "in_proj_weight": torch.cat([pool.q.weight, pool.kv.weight]),
            "in_proj_bias": torch.cat([pool.q.bias, pool.kv.bias]),
            "out_proj.weight": pool.proj.weight,
            "out_proj.bias": pool.proj.bias,
        }
    )
    x = random_images(1, 2, 7, 24, dtype=torch.float64)[0]
    seen = attention(pool.latent.expand(2, -1, -1), x, x)[0]
    expected = seen + pool.mlp(pool.norm(seen))
    assert relative_error(pool(x), expected[:, 0]) < 1e-14
    assert pool(x).shape == (2, 24)
