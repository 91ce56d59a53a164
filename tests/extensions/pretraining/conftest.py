"""Small modules that learn without labels, by task."""

from collections.abc import Callable
from typing import Any

import pytest
from lightning.pytorch import seed_everything

from vit.extensions.pretraining.autoregressive import Autoregressive
from vit.extensions.pretraining.masked_autoencoder import MaskedAutoencoder
from vit.extensions.pretraining.masked_patches import MaskedPatchPrediction
from vit.extensions.pretraining.patch_prediction import PatchPrediction
from vit.preprocessing import Preprocess

SIZES: dict[str, Any] = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}
HALF = Preprocess(image_size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
# The module, options of a small one, and what its encoder needs.
TASKS: dict[str, tuple[type[PatchPrediction], dict[str, Any], dict[str, Any]]] = {
    "masked_patches": (MaskedPatchPrediction, {}, {}),
    "mae": (
        MaskedAutoencoder,
        {"decoder_width": 24, "decoder_depth": 2, "decoder_heads": 2},
        {},
    ),
    "autoregressive": (
        Autoregressive,
        {"head_width": 24, "head_depth": 2},
        {"class_token": False, "pool": "gap"},
    ),
}
BESIDE = {
    "masked_patches": {"mask_token", "predictor"},
    "mae": {"mask_token", "decoder"},
    "autoregressive": {"head"},
}
"""Task -> names beside the encoder in a checkpoint."""
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mean, no class token": {"pool": "gap", "class_token": False, "pos_embed": "sincos2d"},
    "rotary, recomputed": {"pos_embed": "none", "rotary": {}, "recompute": True},
    "norm after pooling": {"norm_after_pool": True, "pool": "gap", "layer_scale": 0.5},
    "attention pooling": {"pool": "map", "class_token": False},
    "variant": {
        "variant": {
            "positions": {"name": "learned2d"},
            "mlp": {"name": "geglu"},
            "residual": {"name": "post"},
            "norm": {"name": "rms"},
            "stack": {"name": "shared"},
        }
    },
}
PREFIX: dict[str, dict[str, Any]] = {  # not of autoregressive, which has patches alone
    "registers": {"num_registers": 3},
    "distilled": {"distillation_token": True},
}
Make = Callable[..., Any]


@pytest.fixture
def make_task() -> Make:
    """A ViT of 16 patches of 4 pixels and its task."""

    def make(task: str, *, init_seed: int = 0, architecture: Any = None, **options: Any) -> Any:
        seed_everything(init_seed, verbose=False)
        module, small, shape = TASKS[task]
        fixed = {"image_size": 16, "preprocess": HALF, **small, **options}
        return module.of("vit_ti16", architecture=SIZES | shape | (architecture or {}), **fixed)

    return make
