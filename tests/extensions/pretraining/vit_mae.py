"""transformers' ViTMAEForPreTraining with the sizes and weights of a module of ours."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vit.extensions.pretraining.masked_autoencoder import MaskedAutoencoder

Read = Callable[[nn.Parameter], Tensor]


def peer_of(module: MaskedAutoencoder) -> Any:
    """A peer; the module, whose positions it takes, gets its weights, which are random."""
    import transformers

    config, decoder = module.model.config, module.decoder
    blocks: Any = decoder.blocks
    peer: Any = transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.num_heads,
            intermediate_size=config.mlp_dim,
            layer_norm_eps=config.layer_norm_eps,
            image_size=config.size[0],
            patch_size=config.patch_size,
            decoder_hidden_size=decoder.norm.normalized_shape[0],
            decoder_num_hidden_layers=len(blocks),
            decoder_num_attention_heads=blocks[0].attn.num_heads,
            decoder_intermediate_size=blocks[0].mlp.fc1.out_features,
            mask_ratio=module.mask_ratio,
            norm_pix_loss=module.target.normalised,
        )
    )
    peer = peer.to(next(module.parameters()).dtype)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        peer.vit.embeddings.position_embeddings.copy_(module.model.pos_embed)
        peer.decoder.decoder_pos_embed.copy_(decoder.positions)
    missing = module.load_state_dict(as_ours(peer, lambda p: p.detach()), strict=False).missing_keys
    assert missing == ["model.pos_embed"]
    return peer


def as_ours(peer: Any, read: Read) -> dict[str, Tensor]:
    """What `read` gives of each trained parameter of a peer, by our names and in our layout."""
    embeddings, decoder, found = peer.vit.embeddings, peer.decoder, {}
    pairs = {
        "model.patch_embed.proj": embeddings.patch_embeddings.projection,
        "model.norm": peer.vit.layernorm,
        "decoder.embed": decoder.decoder_embed,
        "decoder.norm": decoder.decoder_norm,
    }
    for stem, layers in (("model", peer.vit.layers), ("decoder", decoder.decoder_layers)):
        for i, layer in enumerate(layers):
            block, attention = f"{stem}.blocks.{i}", layer.attention
            pairs |= {
                f"{block}.norm1": layer.layernorm_before,
                f"{block}.norm2": layer.layernorm_after,
                f"{block}.attn.proj": attention.o_proj,
                f"{block}.mlp.fc1": layer.mlp.fc1,
                f"{block}.mlp.fc2": layer.mlp.fc2,
            }
            parts = (attention.q_proj, attention.k_proj, attention.v_proj)
            for kind in ("weight", "bias"):
                joined = torch.cat([read(getattr(part, kind)) for part in parts])
                found[f"{block}.attn.qkv.{kind}"] = joined
    for kind in ("weight", "bias"):
        found |= {f"{name}.{kind}": read(getattr(layer, kind)) for name, layer in pairs.items()}
        pixels = read(getattr(decoder.decoder_pred, kind))  # row, column, channel
        by_channel = pixels.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1)
        found[f"decoder.predictor.{kind}"] = by_channel
    found["model.cls_token"] = read(embeddings.cls_token)
    found["mask_token"] = read(decoder.mask_token).flatten()
    return found


def noise_of(kept: Tensor, patches: int) -> Tensor:
    """`b n` numbers that make a peer keep these patches `b k`."""
    noise = torch.ones(len(kept), patches)
    return noise.scatter(1, kept, torch.linspace(0, 0.5, kept.shape[1]).expand(len(kept), -1))
