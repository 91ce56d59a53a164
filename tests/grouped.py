"""Data and models for tests, with the options of their groups given flat; a silent Trainer."""

from typing import Any

import torch
from lightning.pytorch import Trainer

from vit.data.module import ImageData
from vit.data.settings import Loading, Splitting
from vit.training.image_classifier import ImageClassifier
from vit.training.learning import Learning


def _grouped(options: dict[str, Any], **groups: Any) -> dict[str, Any]:
    """`a=1` becomes `group=Group(a=1)` where the group has a field `a`."""
    options = dict(options)
    for name, group in groups.items():
        inside = {key: options.pop(key) for key in group.__dataclass_fields__ if key in options}
        if inside:
            options[name] = group(**inside)
    return options


def image_data(*args: Any, **options: Any) -> ImageData:
    """`val_fraction=0.2` for `splits=Splitting(val_fraction=0.2)`, and so on."""
    return ImageData(*args, **_grouped(options, splits=Splitting, loading=Loading))


def image_classifier(*args: Any, **options: Any) -> ImageClassifier:
    """`layer_decay=0.5` for `learning=Learning(layer_decay=0.5)`, and so on."""
    return ImageClassifier.of(*args, **_grouped(options, learning=Learning))


def silent_trainer(**options: Any) -> Trainer:
    """A Trainer on the CPU that prints and logs nothing, and saves by its callbacks alone."""
    saves = any("Checkpoint" in type(c).__name__ for c in options.get("callbacks", ()))
    silent: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": saves,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    return Trainer(**{**silent, **options})


def tuned(pretrained: str, *, seed: int = 0, **options: Any) -> Any:
    """A classifier of a, b and c with 8 x 8 pixels, from weights in a folder."""
    torch.manual_seed(seed)
    fixed: dict[str, Any] = {
        "num_classes": 3,
        "image_size": 8,
        "classes": ["a", "b", "c"],
        "optimizer": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    }
    return image_classifier(pretrained=pretrained, **{**fixed, **options})
