"""Which recipe, and which variant of it, has which of the published numbers."""

from dataclasses import replace
from typing import Any

from tests.training import published as sources
from tests.training.published import Published


def variants(base: Published, **changes: dict[str, Any]) -> dict[str, Published]:
    """The recipe itself under '', and its variants."""
    changed = {name: replace(base, **fields) for name, fields in changes.items()}
    return {"": base, **changed}


# At the size of CIFAR-10: what each source says, with the changes that the header names.
CIFAR: dict[str, Any] = {"image_size": 32, "batch": 128, "epochs": 30, "crop": "pad"}
SHORTER = {**CIFAR, "model": None, "warmup_steps": 1000}
EPOCHS = {**CIFAR, "model": None, "warmup_epochs": 1, "smallest_crop": 0.05}
EQUAL_FLOPS = replace(
    sources.JFT, **{**SHORTER, "epochs": 10, "warmup_steps": 200}, lr=1e-3, tanh_layer=False
)
EQUAL_FLOPS_VIT = replace(EQUAL_FLOPS, pool="gap", pos_embed="sincos2d")
# arXiv:1911.04252, section 3.1, as the header changes it.
NOISE: dict[str, Any] = {"dropout": 0.1, "drop_path": 0.2}
NOISE |= {"randaugment": (2, 9), "randaugment_variant": "timm"}

PUBLISHED: dict[str, dict[str, Published]] = {
    "pretrain/vit_jft": variants(
        sources.JFT,
        vit_b32={"model": "vit_b32"},
        vit_l32={"model": "vit_l32", "lr": 6e-4},
        vit_l16={"model": "vit_l16", "lr": 4e-4},
        vit_l16_14_epochs={"model": "vit_l16", "lr": 4e-4, "epochs": 14},
        vit_h14={"model": "vit_h14", "lr": 3e-4, "epochs": 14},
        bit_r50x1={"model": "bit_r50x1", "lr": 1e-3, **sources.RESNET},
        bit_r50x2={"model": "bit_r50x2", "lr": 1e-3, **sources.RESNET},
        bit_r101x1={"model": "bit_r101x1", "lr": 8e-4, **sources.RESNET},
        bit_r152x1={"model": "bit_r152x1", "lr": 6e-4, **sources.RESNET},
        bit_r152x2={"model": "bit_r152x2", "lr": 6e-4, **sources.RESNET},
        r50_vit_b32={"model": "r50_vit_b32", "lr": 8e-4},
        r50_vit_b16={"model": "r50_vit_b16", "lr": 8e-4},
        r50_vit_l32={"model": "r50_vit_l32", "lr": 2e-4},
        r50_vit_l16={"model": "r50_vit_l16", "lr": 4e-4},
        r50_vit_l16_14_epochs={"model": "r50_vit_l16", "lr": 4e-4, "epochs": 14},
        patch_mean={"pool": "gap", "lr": 3e-4},
    ),
    "pretrain/vit_imagenet21k": variants(
        sources.IMAGENET21K,
        vit_b32={"model": "vit_b32"},
        vit_l16={"model": "vit_l16"},
        vit_l16_30_epochs={"model": "vit_l16", "epochs": 30},
        vit_l32={"model": "vit_l32"},
        vit_l32_30_epochs={"model": "vit_l32", "epochs": 30},
    ),
    "pretrain/scaling_vit_g": variants(sources.SCALING),
    "pretrain/scaling_vit_gigantic": variants(replace(sources.SCALING, model="vit_gigantic14")),
    "imagenet1k/vit_b16": variants(
        sources.IMAGENET1K, **{name: {"model": name} for name in ("vit_b32", "vit_l16", "vit_l32")}
    ),
    "imagenet1k/vit_s16": variants(sources.PLAIN, **{"300_epochs": {"epochs": 300}}),
    "pretrain/augreg_imagenet1k": variants(
        sources.AUGREG1K,
        vit_ti16={"model": "vit_ti16", **sources.LEVELS["light1"]},
        vit_s32={"model": "vit_s32", **sources.LEVELS["medium1"]},
        vit_s16={"model": "vit_s16", **sources.LEVELS["medium2"]},
        vit_b32={"model": "vit_b32", **sources.LEVELS["medium2"]},
        vit_l16={"model": "vit_l16", **sources.LEVELS["medium2"]},
        **sources.LEVELS,
    ),
    "pretrain/augreg_imagenet21k": variants(
        sources.AUGREG21K,
        vit_ti16={"model": "vit_ti16", **sources.LEVELS["none"]},
        vit_s32={"model": "vit_s32", **sources.LEVELS["none"]},
        vit_s16={"model": "vit_s16", **sources.LEVELS["light1"]},
        vit_b32={"model": "vit_b32", **sources.LEVELS["light2"]},
        vit_l16={"model": "vit_l16", **sources.LEVELS["medium2"]},
        **{
            "wd_0.03": {"weight_decay": 0.03},
            "do_0.1": {"dropout": 0.1},
            "sd_0.1": {"drop_path": 0.1},
        },
    ),
    "pretrain/deit": variants(
        sources.DEIT, vit_s16={"model": "vit_s16"}, vit_ti16={"model": "vit_ti16"}
    ),
    "pretrain/deit_distilled": variants(
        sources.DISTILLED,
        vit_s16={"model": "vit_s16"},
        vit_ti16={"model": "vit_ti16"},
        soft={"distillation": ("soft", 0.1, 3.0)},
    ),
    "pretrain/deit3_imagenet1k": variants(
        sources.DEIT3,
        vit_s16={"model": "vit_s16", "image_size": 224, "lr": 4e-3, "drop_path": 0.05},
        vit_l16={"model": "vit_l16", "drop_path": 0.45},
        vit_h14={"model": "vit_h14", "image_size": 160 // 14 * 14, "drop_path": 0.6},
    ),
    "pretrain/deit3_imagenet21k": variants(
        sources.DEIT3_21K,
        vit_s16={"model": "vit_s16", "drop_path": 0.05},
        vit_l16={"model": "vit_l16", "drop_path": 0.3},
        vit_h14={"model": "vit_h14", "image_size": 128 // 14 * 14, "drop_path": 0.5, "epochs": 90},
    ),
    "pretrain/mae_imagenet1k": variants(
        sources.MAE,
        vit_l16={"model": "vit_l16"},
        vit_h14={"model": "vit_h14"},
        plain_pixels={"norm_pix": False},
        **{"1600_epochs": {"epochs": 1600}},
    ),
    "pretrain/bit_imagenet1k": variants(sources.BIT1K, **sources.BITS),
    "pretrain/bit_imagenet21k": variants(sources.BIT21K, **sources.BITS),
    "pretrain/torchvision_vit_b16": variants(sources.TORCHVISION),
    "transfer/vit": variants(
        sources.TUNED,
        cifar10={},
        cifar100={},
        imagenet={"steps": 20_000, "lr": 0.03},
        oxford_iiit_pet=sources.SHORT,
        flowers102=sources.SHORT,
        no_dropout={"dropout": 0.0},
        small_images={**sources.SHORT, "image_size": 32, "batch": 128},
    ),
    "transfer/vtab": variants(replace(sources.TUNED, steps=2500, crop="none")),
    "transfer/vit_polyak": variants(
        replace(sources.TUNED, image_size=512, steps=20_000, lr=0.03, average=0.9999),
        vit_h14={"model": "vit_h14", "image_size": 518},
    ),
    "transfer/augreg": variants(replace(sources.TUNED, lr=0.03, steps=500, warmup_steps=100)),
    "transfer/big_vision": variants(
        sources.BIG_VISION,
        cifar10={"lr": 0.003},
        cifar100={"lr": 0.01},
        imagenet={**sources.INCEPTION, "lr": 0.03, "steps": 20_000},
        oxford_iiit_pet={**sources.INCEPTION, **sources.SHORT, "lr": 0.003},
        flowers102={**sources.INCEPTION, **sources.SHORT, "lr": 0.003},
        squashed={},
    ),
    "transfer/bit_small": variants(sources.HYPERRULE, **sources.SMALL_IMAGES),
    "transfer/bit_medium": variants(sources.HYPERRULE_10K, **sources.SMALL_IMAGES),
    "transfer/bit_large": variants(sources.HYPERRULE_20K, **sources.SMALL_IMAGES),
    "transfer/deit_384": variants(sources.DEIT384),
    "transfer/deit3": variants(
        sources.DEIT3_TUNED,
        vit_l16={"drop_path": 0.45},
        vit_h14={"drop_path": 0.55},
        vit_s16_384={"drop_path": 0.0, "image_size": 384},
        vit_b16_384={"drop_path": 0.15, "image_size": 384},
        vit_l16_384={"drop_path": 0.4, "image_size": 384},
    ),
    "transfer/deit3_imagenet21k": variants(
        sources.DEIT3_21K_TUNED,
        vit_s16={"drop_path": 0.05},
        vit_l16={"drop_path": 0.4},
        vit_h14={"drop_path": 0.45},
    ),
    "transfer/mae": variants(
        sources.MAE_TUNED,
        vit_l16={**sources.LARGE, "drop_path": 0.2},
        vit_h14={**sources.LARGE, "drop_path": 0.3},
    ),
    "cifar10/vit": variants(replace(sources.IMAGENET1K, **SHORTER)),
    "cifar10/augreg": variants(
        replace(
            sources.AUGREG1K,
            **SHORTER,
            **sources.LEVELS["light2"],
            randaugment_variant="torchvision",
            head_bias=-2.3,
        )
    ),
    "cifar10/plain": variants(replace(sources.PLAIN, **SHORTER, randaugment_variant="torchvision")),
    "cifar10/deit": variants(
        replace(sources.DEIT, **EPOCHS, average=0.9986),
        distilled={"distillation": ("hard", 0.5, 1.0)},
    ),
    "cifar10/deit3": variants(
        replace(sources.DEIT3, **{**EPOCHS, "crop": "simple"}, lr=4e-3 / 4, drop_path=0.05)
    ),
    "cifar10/bit": variants(
        replace(sources.BIT1K, **{**CIFAR, "warmup_steps": 200}, lr=0.1 / 256 * 128),
    ),
    "cifar10/equal_flops_vit": variants(EQUAL_FLOPS_VIT),
    "cifar10/equal_flops_hybrid": variants(EQUAL_FLOPS_VIT),
    "cifar10/noisy_student": variants(replace(EQUAL_FLOPS_VIT, **NOISE, epochs=30)),
    "cifar10/equal_flops_bit": variants(replace(EQUAL_FLOPS, pool="mean", model="bit_r50x1")),
}
"""Recipe -> '' and the names of its variants -> what is published about them."""
