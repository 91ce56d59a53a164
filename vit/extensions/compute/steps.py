"""Operations and memory of a training step of any task, counted on its own loss."""
# pyright: reportUnknownMemberType=false

from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.fx.experimental._config import patch as assuming  # pyright: ignore

from vit.data.module import ImageData
from vit.data.settings import Loading, Splitting
from vit.extensions.compute.candidate import describe
from vit.extensions.compute.flops import counting
from vit.extensions.compute.memory import Activations, OfCuda, TaskStep, kept_by_autograd
from vit.facts import Facts
from vit.models.zoo import ZOO, ModelConfig
from vit.runs.options import parser_of, task_of
from vit.seeds import seeded
from vit.training.network_training import DECIDED

IMAGES = 16
"""Of the counted step, so that about the same share of them is masked as in a whole batch."""
NOT_COUNTED = ("name", "architecture", "pretrained", "weights", "compile", "optimizer", "schedule")
"""Options of a task that say nothing about the operations of its step."""


def counted_step(task: str, config: ModelConfig, recipe: dict[str, Any]) -> TaskStep:
    """A step by a recipe, of which `recipe` is the content, in bf16 (mixed). UserError for a
    network that the task cannot train."""
    kind: Any = task_of(task)  # each has arguments of its own
    parser = parser_of(kind)
    usual = signature(ImageData).parameters  # which say nothing about them, either
    data = {k: v for k, v in (recipe.get("data") or {}).items() if k not in usual}
    model = {k: v for k, v in (recipe.get("model") or {}).items() if k not in NOT_COUNTED}
    fields = {k: v for k, v in config.to_dict().items() if k not in (*DECIDED, "architecture")}
    name = describe(config)
    model |= {"name": name if name in ZOO else None, "architecture": fields}
    data["image_size"] = list(config.size)
    built = parser.instantiate(parser.parse_object({"model": model, "data": data}))
    batch = _batch(kind.data_module or ImageData, vars(built.data))
    with torch.device("meta"):
        module = kind(**vars(built.model), facts=Facts(image_size=config.size))
    module.to("meta")  # buffers made elsewhere
    trainer = SimpleNamespace(global_step=1, estimated_stepping_batches=2)
    module.trainer = trainer  # a weak reference
    module.log = lambda *_, **__: None
    dynamic = assuming(meta_nonzero_assume_all_nonzero=True)
    with seeded(0), dynamic, counting() as counter:  # the same masks each time
        module.training_loss(batch).backward()
    with seeded(0), dynamic, kept_by_autograd(module) as storages, OfCuda("bf16") as gpu:
        module.training_loss(batch)
    copies = {copy.untyped_storage()._cdata for copy in gpu.copies.values()}
    saved = sum(each.nbytes() for each in storages if each._cdata not in copies) // IMAGES
    held = sum(p.numel() * (4 + (2 + 4 + 8) * p.requires_grad) for p in module.parameters())
    return TaskStep(counter.get_total_flops() // IMAGES, Activations(saved=saved), held)


def _batch(source: Any, options: dict[str, Any]) -> list[Tensor]:
    """A batch as the task gets it, its pixels on the meta device."""
    image = Image.new("RGB", (8, 8))
    options |= {"batch_size": IMAGES, "splits": Splitting(val_fraction=0)}
    options["loading"] = Loading(num_workers=0)
    data = source.of([(image, 0)] * IMAGES, **options).read_as(labelled=False)
    *_, batch = (data.on_after_batch_transfer(b, 0) for b in data.train_dataloader())
    return [part.to("meta") if part.is_floating_point() else part for part in batch]
