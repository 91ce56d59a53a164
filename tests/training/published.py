"""What the sources publish about each recipe, typed from them and not from the recipes.

Numbers are the sources' own: peak learning rates, global batches, epochs or steps. Weight decay is
AdamW's, which the learning rate multiplies; where a source keeps it apart from the rate, too, the
division is spelled out.
"""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Published:
    """A recipe, or one of its variants."""

    # Model: the size's name, and what training adds to it.
    model: str | None = None
    dropout: float = 0.0
    drop_path: float = 0.0
    uniform_drop_path: bool = False
    layer_scale: float | None = None
    tanh_layer: bool = False
    pool: str = "cls"
    norm_after_pool: bool = False
    pos_embed: str = "learned"
    # Data.
    image_size: int
    batch: int
    crop: str = "inception"
    smallest_crop: float = 0.05
    resize_size: int | None = None
    randaugment: tuple[int, int] | None = None
    randaugment_variant: str | None = None
    three_augment: bool = False
    color_jitter: float = 0.0
    erasing: float = 0.0
    repeats: int = 1
    mixup: float = 0.0
    cutmix: float = 0.0
    # Loss.
    loss: str = "softmax"
    smoothing: float = 0.0
    head_bias: float | None = None
    distillation: tuple[str, float, float] | None = None
    mask_ratio: float | None = None
    norm_pix: bool | None = None
    # Optimizer.
    optimizer: str
    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    eps: float = 1e-8
    clip: float | None = None
    average: float | None = None
    layer_decay: float = 1.0
    # Length, and the learning rate on the way.
    epochs: int | None = None
    steps: int | None = None
    decay: str = "cosine"
    drops: tuple[float, ...] = ()
    timescale: int | None = None
    cooldown_steps: int = 0
    warmup_steps: int = 0
    warmup_epochs: int = 0
    first_lr: float = 0.0
    last_lr: float = 0.0
    per_epoch: bool = False
    from_the_start: bool = False


ADAM: dict[str, Any] = {"optimizer": "adamw"}
SGD: dict[str, Any] = {"optimizer": "sgd"}

# arXiv:2010.11929, Table 3.
JFT = Published(
    **ADAM,
    model="vit_b16",
    image_size=224,
    batch=4096,
    epochs=7,
    lr=8e-4,
    weight_decay=0.1,
    decay="linear",
    warmup_steps=10_000,
    tanh_layer=True,
)
IMAGENET21K = replace(JFT, epochs=90, lr=1e-3, weight_decay=0.03, dropout=0.1)
IMAGENET1K = replace(
    JFT, epochs=300, lr=3e-3, weight_decay=0.3, dropout=0.1, decay="cosine", clip=1.0
)
# big_vision, configs/proj/scaling_laws/train_vit_g.py: lr 8e-4, wd 0.03 * 8e-4. Its optimizer is an
# Adafactor with momentum 0.9 and beta2 of at most 0.999, and its decay of the head 100 times this.
SCALING = Published(
    **ADAM,
    model="vit_giant14",
    pool="map",
    image_size=224,
    batch=4096 * 4,
    steps=1_000_000,
    lr=8e-4,
    weight_decay=0.03,
    decay="rsqrt",
    timescale=10_000,
    warmup_steps=10_000,
    cooldown_steps=50_000,
    clip=1.0,
    loss="sigmoid",
    head_bias=-10.0,
)
RESNET = {"tanh_layer": False, "pool": "mean"}

# big_vision, configs/vit_i1k.py and vit_i21k.py: lr 1e-3, wd 1e-4.
AUGREG = Published(
    **ADAM,
    model="vit_b16",
    image_size=224,
    batch=4096,
    epochs=300,
    lr=1e-3,
    weight_decay=1e-4 / 1e-3,
    warmup_steps=10_000,
    clip=1.0,
    loss="sigmoid",
    randaugment_variant="tf",
)
LEVELS: dict[str, dict[str, Any]] = {
    "none": {"randaugment": None, "randaugment_variant": None, "mixup": 0.0},
    "light1": {"randaugment": (2, 0), "mixup": 0.0},
    "light2": {"randaugment": (2, 10), "mixup": 0.2},
    "medium1": {"randaugment": (2, 15), "mixup": 0.2},
    "medium2": {"randaugment": (2, 15), "mixup": 0.5},
    "strong1": {"randaugment": (2, 20), "mixup": 0.5},
    "strong2": {"randaugment": (2, 20), "mixup": 0.8},
}
AUGREG1K = replace(AUGREG, tanh_layer=True, head_bias=-6.9, **LEVELS["medium2"])
AUGREG21K = replace(AUGREG, pool="gap", head_bias=-10.0, **LEVELS["light2"])
PLAIN = replace(
    AUGREG,
    model="vit_s16",
    batch=1024,
    epochs=90,
    loss="softmax",
    tanh_layer=True,
    pool="gap",
    pos_embed="sincos2d",
    **LEVELS["light2"],
)

# deit/main.py; its learning rate is 5e-4 for 512 images.
DEIT = Published(
    **ADAM,
    model="vit_b16",
    image_size=224,
    batch=1024,
    epochs=300,
    lr=5e-4 * 1024 / 512,
    weight_decay=0.05,
    warmup_epochs=5,
    first_lr=1e-6,
    last_lr=1e-5,
    per_epoch=True,
    from_the_start=True,
    drop_path=0.1,
    smallest_crop=0.08,
    randaugment=(2, 9),
    randaugment_variant="timm",
    erasing=0.25,
    repeats=3,
    mixup=0.8,
    cutmix=1.0,
    smoothing=0.1,
    average=0.99996,
)
DISTILLED = replace(DEIT, distillation=("hard", 0.5, 1.0))
# deit/README_deit.md: --batch-size 32 --nodes 2 --lr 5e-6 --min-lr 5e-6, so a constant rate.
DEIT384 = replace(
    DEIT,
    model=None,
    image_size=384,
    batch=2 * 8 * 32,
    epochs=30,
    lr=5e-6,
    last_lr=5e-6,
    weight_decay=1e-8,
    decay="constant",
    from_the_start=False,
)

# deit/README_revenge.md.
DEIT3 = Published(
    optimizer="lamb",
    model="vit_b16",
    image_size=192,
    batch=2048,
    epochs=800,
    lr=3e-3,
    weight_decay=0.05,
    clip=1.0,
    warmup_epochs=5,
    first_lr=1e-6,
    last_lr=1e-5,
    per_epoch=True,
    from_the_start=True,
    drop_path=0.2,
    uniform_drop_path=True,
    layer_scale=1e-4,
    smallest_crop=0.08,
    three_augment=True,
    color_jitter=0.3,
    repeats=3,
    mixup=0.8,
    cutmix=1.0,
    loss="bce",
)
DEIT3_21K = replace(
    DEIT3,
    image_size=224,
    epochs=240,
    lr=1e-3,
    weight_decay=0.02,
    drop_path=0.1,
    crop="simple",
    smallest_crop=0.05,  # which this crop does not use
    repeats=1,
    mixup=0.0,
    loss="softmax",
    smoothing=0.1,
)
DEIT3_21K_TUNED = replace(
    DEIT3_21K, model=None, layer_scale=None, epochs=50, lr=3e-4, drop_path=0.15
)
DEIT3_TUNED = replace(
    DEIT3,
    **ADAM,
    model=None,
    layer_scale=None,
    image_size=224,
    batch=512,
    epochs=20,
    lr=1e-5,
    weight_decay=0.1,
    clip=None,
    decay="constant",
    from_the_start=False,
    randaugment=(2, 9),
    randaugment_variant="timm",
    three_augment=False,
    color_jitter=0.0,
    repeats=1,
    loss="softmax",
    smoothing=0.1,
)

# big_vision, configs/bit_i1k.py and bit_i21k.py; both numbers for a batch of 256.
BIT1K = Published(
    optimizer="sgdw",
    model="bit_r50x1",
    pool="mean",
    image_size=224,
    batch=4096,
    epochs=90,
    lr=0.1 / 256 * 4096,
    weight_decay=1e-4 / 0.1,
    warmup_steps=1000,
    clip=1.0,
)
BIT21K = replace(
    BIT1K,
    lr=0.03 / 256 * 4096,
    weight_decay=3e-5 / 0.03,
    warmup_steps=5000,
    loss="sigmoid",
    head_bias=-10.0,
)
BITS = {name: {"model": name} for name in ("bit_r101x1", "bit_r50x3", "bit_r101x3", "bit_r152x4")}

# pytorch/vision, references/classification.
TORCHVISION = Published(
    **ADAM,
    model="vit_b16",
    image_size=224,
    batch=4096,
    epochs=300,
    lr=3e-3,
    weight_decay=0.3,
    warmup_epochs=30,
    first_lr=0.033 * 3e-3,
    per_epoch=True,
    clip=1.0,
    smallest_crop=0.08,
    randaugment=(2, 9),
    randaugment_variant="torchvision",
    repeats=3,
    mixup=0.2,
    cutmix=1.0,
    smoothing=0.11,
    # alpha 2e-5 * batch * 32 / epochs every 32 steps.
    average=0.99973,
)

# facebookresearch/mae, PRETRAIN.md and main_pretrain.py, whose rates are for a batch of 256.
MAE = Published(
    **ADAM,
    model="vit_b16",
    image_size=224,
    batch=64 * 8 * 8,
    epochs=800,
    lr=1.5e-4 * 4096 / 256,
    weight_decay=0.05,
    betas=(0.9, 0.95),
    warmup_epochs=40,
    smallest_crop=0.2,
    loss="pixels",
    mask_ratio=0.75,
    norm_pix=True,
)
# FINETUNE.md and main_finetune.py; the rest is DeiT's.
MAE_TUNED = replace(
    DEIT,
    model=None,
    pool="gap",
    norm_after_pool=True,
    batch=32 * 4 * 8,
    epochs=100,
    lr=5e-4 * 1024 / 256,
    layer_decay=0.65,
    first_lr=0.0,
    last_lr=1e-6,
    per_epoch=False,
    from_the_start=False,
    repeats=1,
    average=None,
)
LARGE: dict[str, Any] = {"lr": 1e-3 * 1024 / 256, "layer_decay": 0.75, "epochs": 50}

# arXiv:2010.11929, Table 4; vision_transformer, configs/common.py.
TUNED = Published(
    **SGD, image_size=384, batch=512, steps=10_000, lr=0.01, clip=1.0, warmup_steps=500
)
SHORT: dict[str, Any] = {"steps": 500, "warmup_steps": 100}
BIG_VISION = replace(TUNED, lr=3e-3, crop="resize_random", resize_size=448)
INCEPTION: dict[str, Any] = {"crop": "inception", "resize_size": None}

# big_transfer, bit_hyperrule.py: [100, 200, 300, 400, 500] and so on.
HYPERRULE = Published(
    **SGD,
    image_size=480,
    batch=512,
    crop="resize_random",
    resize_size=512,
    lr=3e-3,
    steps=500,
    warmup_steps=100,
    decay="steps",
    drops=(200 / 500, 300 / 500, 400 / 500),
    from_the_start=True,
)
HYPERRULE_10K = replace(
    HYPERRULE, steps=10_000, warmup_steps=500, mixup=0.1, drops=(3000 / 1e4, 6000 / 1e4, 9000 / 1e4)
)
HYPERRULE_20K = replace(HYPERRULE_10K, steps=20_000, drops=(6000 / 2e4, 12_000 / 2e4, 18_000 / 2e4))
SMALL_IMAGES: dict[str, dict[str, Any]] = {
    "below_96_pixels": {"image_size": 128, "resize_size": 160},
    "cifar10_bit": {"image_size": 32, "resize_size": 40, "batch": 128},
}
