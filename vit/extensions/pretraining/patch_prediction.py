"""PatchPrediction: training without labels, by predicting patches of an image from others.

Shapes: b batch, h w pixels, n patches, m predicted patches an image, d width, o answers a patch.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.pretraining.masking import (
    Corruption,
    from_patches,
    patch_pixels,
    rows,
    to_bytes,
)
from vit.extensions.pretraining.patch_metrics import PatchMetrics, constant_note
from vit.extensions.pretraining.targets import Colors, Pixels
from vit.facts import Facts
from vit.models.config import ViTConfig
from vit.models.embedding import sincos2d
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.seeds import step_seed
from vit.shapes import Float, Int
from vit.training.counted_data import Batch, counting_data
from vit.training.draws import batch_draws
from vit.training.network_training import NetworkTraining, build_network, default_optimizer
from vit.training.schedules import Schedule

Grid = tuple[int, int]


class PatchPrediction(NetworkTraining[VisionTransformer, PatchMetrics]):
    """Trains an encoder to predict patches of an image from others.

    A task is a subclass: its constructor adds the layers beside the encoder; it draws what is
    hidden of an image, and predicts it.

    Args:
        name: Model name as `vit models` lists it, a ViT or, where patches may overlap, a hybrid.
            Default: what `pretrained` holds, or vit_ti16.
        predicted: Pixels or colours.
        architecture: Fields of the model's configuration to change, such as
            {patch_size: 4, dropout: 0.1}; recompute: true saves memory, and computes layers twice.
        pretrained: Weights to start from: a run, a model directory, a file, or a hub address.
        weights: Of a file with both, the raw weights or their average (the default).
        optimizer: Any torch optimizer; it gets parameter groups in which only kernels decay.
        schedule: Warm-up and decay of the learning rate.
        compile: Compiles the encoder's layers, and a decoder's, with torch.compile, in place.
        facts: What follows from the images: `ImageData.facts`. They are RGB; without preprocessing,
            whose mean and std lead back to the pixels, they are taken to be in [0, 1].
    """

    labelled = False
    monitor = "val/loss"
    overlapping: ClassVar[bool] = False
    """Patches may overlap, as those of a hybrid do."""
    numbers: ClassVar[int] = 1
    """Uniform random numbers for each patch."""
    caption: str
    """Pictures from left to right; {note} of a class is the target's."""

    def __init__(
        self,
        name: str | None = None,
        *,
        predicted: Pixels | Colors,
        architecture: dict[str, Any] | None = None,
        pretrained: str | None = None,
        weights: Literal["raw", "average"] | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        schedule: Schedule | None = None,
        compile: bool = False,
        facts: Facts = Facts(),
    ) -> None:
        if facts.channels is not None:
            raise UserError("patches are predicted for RGB images; leave out data.channels")
        super().__init__(facts.preprocess, optimizer, schedule, compile=compile)
        network, self.load_report = build_network(
            name, pretrained, architecture, facts, weights=weights, num_classes=0
        )
        self.model = check_encoder(network, overlapping=self.overlapping)
        # The layers between the tokens and a head of classes take no part.
        for part in (network.attn_pool, network.pre_logits):
            if part is not None:
                part.requires_grad_(False)
        self.target, self.caption = predicted, self.caption.format(note=predicted.note)
        kinds = predicted.num_answers(network.patch_size), predicted.num_classes
        self.val_metrics, self.test_metrics = PatchMetrics(*kinds), PatchMetrics(*kinds)
        self.train()  # Lightning trains in the modes that it finds

    of_training = frozenset(inspect.signature(__init__).parameters)

    @classmethod
    def for_scoring(
        cls,
        weights: str,
        facts: Facts,
        recorded: dict[str, Any],
        read_state: Callable[[], dict[str, Tensor]],
    ) -> Self:
        task = {name: value for name, value in recorded.items() if name not in cls.of_training}
        module = cls(pretrained=weights, facts=facts, **task)
        module.load_state_dict(read_state())  # model/ has the encoder alone
        return module

    @abstractmethod
    def draw(self, uniforms: Float[Tensor, "b numbers n"]) -> Corruption:
        """The corruption of images, from numbers in [0, 1)."""

    @abstractmethod
    def predict(
        self, patches: Float[Tensor, "b n d"], grid: Grid, hidden: Corruption
    ) -> Float[Tensor, "b m o"]:
        """Predictions at the corrupted patches."""

    def forward(self, images: Float[Tensor, "b 3 h w"], corruption: Corruption) -> Tensor:
        """Predictions at the corrupted patches, `b m o`."""
        # With precision bf16-true, images still come in float32.
        patches, grid = self.model.embed(images.to(self.dtype))
        return self.predict(patches, grid, corruption).to(images.dtype)

    def targets(self, images: Float[Tensor, "b 3 h w"]) -> Tensor:
        """Targets of all patches, `b n o`."""
        return self.target.targets(images, self.model.patch_size, self.preprocess)

    def corruption(
        self, images: Tensor, indices: Tensor | None = None, seed: int | None = None
    ) -> Corruption:
        """Drawn for the step, or, for an evaluation, from `indices` and the data's `seed`, by
        default that of the Trainer's data."""
        p = self.model.patch_size
        shape = (self.numbers, (images.shape[-2] // p) * (images.shape[-1] // p))
        if indices is None:
            draws = self.draws or batch_draws(len(images))
            seeds = [step_seed(draws.seed, place, 0) for place in draws.places]
        else:
            data = None if seed is not None else counting_data(self.trainer)
            seed = data.seed if data is not None else seed or 0
            seeds = [step_seed(seed, index, -1) for index in indices.tolist()]
        generator = torch.Generator()
        drawn = [torch.rand(shape, generator=generator.manual_seed(seed)) for seed in seeds]
        uniforms = torch.stack(drawn) if drawn else torch.empty(0, *shape)
        return self.draw(uniforms).to(images.device)

    @torch.inference_mode()
    def pictures(
        self, images: Float[Tensor, "b 3 h w"], indices: Tensor, seed: int | None = None
    ) -> dict[str, Int[Tensor, "b _ h w"]]:
        """Whole numbers from 0 to 255: `images`, `seen`, `predicted` and `true` colours.

        `seen` is gray in masked patches; `corrupted` is 1 in corrupted patches, else 0. The
        arguments are normalised images, their places in the set, and the seed of `corruption`.
        """
        patch_size, size = self.model.patch_size, (images.shape[-2], images.shape[-1])
        corruption, targets = self.corruption(images, indices, seed), self.targets(images)
        pixels = to_bytes(images, self.preprocess)
        parts = patch_pixels(pixels, patch_size)
        gray = torch.full_like(parts[0, 0], 128)
        answers = self(images, corruption)
        if self.target.num_classes:
            answers = answers.unflatten(-1, (-1, self.target.num_classes)).argmax(-1)
        at = corruption.chosen[..., None]
        filled = targets.scatter(1, at.expand_as(answers), answers.to(targets.dtype))
        marks = torch.zeros_like(parts[:, :, :1]).scatter(1, at, 1)
        return {
            "images": pixels,
            "seen": from_patches(corruption(parts, gray), size),
            "predicted": self.target.shown(filled, images, patch_size, self.preprocess),
            "true": self.target.shown(targets, images, patch_size, self.preprocess),
            "corrupted": from_patches(marks.expand(-1, -1, patch_size**2), size),
        }

    def headline(self, split: str, metrics: dict[str, float]) -> str:
        return f"{super().headline(split, metrics)}\n{constant_note(split, metrics)}".rstrip()

    def scored(
        self, images: Float[Tensor, "b 3 h w"], corruption: Corruption
    ) -> tuple[Tensor, Tensor]:
        """Predictions `b m _` and targets `b m o` of which the loss is taken."""
        return self(images, corruption), rows(self.targets(images), corruption.chosen)

    def training_loss(self, batch: Batch) -> Tensor:
        return self.target.loss(*self.scored(batch[0], self.corruption(batch[0])))

    def evaluate_batch(self, batch: Batch, metrics: PatchMetrics) -> None:
        images, _, indices = batch
        # Also of no image: shards are gathered by all.
        predicted, targets = self.scored(images, self.corruption(images, indices))
        if len(images):
            loss = self.target.loss(predicted, targets)
            metrics.update(predicted, targets, loss, len(images))


def check_encoder(network: Model, *, overlapping: bool) -> VisionTransformer:
    """The network as an encoder. UserError for one whose patches cannot be predicted."""
    if not isinstance(network, VisionTransformer) or not (
        overlapping or network.patch_embed.backbone is None
    ):
        pixels = "a ViT, not a hybrid, whose patches overlap, nor a ResNet, which has none"
        kinds = "a ViT or a hybrid, not a ResNet" if overlapping else pixels
        raise UserError(f"this task predicts patches: name {kinds}")
    if network.layer_strides[-1] > network.patch_size:
        raise UserError(
            "this task predicts every patch, and the last layer has means of them: leave out "
            "model.architecture.variant.stack"
        )
    if network.config.grid == (1, 1):
        raise UserError(
            f"the image is a single patch of {network.patch_size} pixels: nothing is left to "
            "predict it from; choose a smaller model.architecture.patch_size"
        )
    return network


def mask_token(width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(width), std=0.02))


def fix_positions(encoder: VisionTransformer, *, fresh: bool) -> None:
    """Fixes a learned table of positions, as MAE's official code does: at sines and cosines if
    `fresh`, else as it is. Fine-tuning trains it."""
    if encoder.pos_embed is not None:
        table, config = encoder.pos_embed.requires_grad_(False), encoder.config
        if fresh:
            table.copy_(sines(config, config.width, config.num_position_slots))


def sines(config: ViTConfig, width: int, slots: int) -> Float[Tensor, "1 slots_n d"]:
    """MAE's fixed positions (its official code), zero for `slots` tokens before the patches.

    Its frequencies are 10,000^(-4i/width); those of `sincos2d` have width / 4 - 1 below the i.
    """
    return F.pad(sincos2d(config.grid, width, 10_000 ** (1 - 4 / width)), (0, 0, slots, 0))
