"""PatchPrediction: what the objectives without labels share, which predict patches from others.

Shapes: b batch, h w pixels, n patches, m predicted patches an image, o answers a patch.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

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
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.seeds import step_seed
from vit.shapes import Float, Int
from vit.training.counted_data import counting_data
from vit.training.draws import batch_draws
from vit.training.network_training import NetworkTraining, build_network, default_optimizer
from vit.training.schedules import Schedule

Pair = tuple[Tensor, Tensor]


class PatchPrediction(NetworkTraining[VisionTransformer, PatchMetrics]):
    """Trains an encoder to predict patches of an image from others; a subclass has the objective.

    Args:
        name: Model name as `vit models` lists it, a ViT or, where patches may overlap, a hybrid.
            Default: what `pretrained` holds, or vit_ti16.
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
    kinds = "a ViT or a hybrid, not a ResNet"
    """The networks that the objective is defined for."""
    overlapping = True
    """Patches may overlap, as those of a hybrid do."""
    numbers: int
    """Uniform random numbers for each patch."""

    @property
    def caption(self) -> str:
        """What `pictures` shows from left to right."""
        return (
            "the image; the input of the encoder, masked patches in gray; the colours that it "
            "predicted for the corrupted patches; the true ones."
        )

    def __init__(
        self,
        name: str | None = None,
        *,
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
        if not isinstance(network, VisionTransformer) or not (
            self.overlapping or network.config.stem_depths is None
        ):
            raise UserError(f"this task predicts patches: name {self.kinds}")
        self.model = network
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
        # The layers between the tokens and a head of classes take no part.
        for part in (network.attn_pool, network.pre_logits):
            if part is not None:
                part.requires_grad_(False)
        self.mean = facts.preprocess.mean if facts.preprocess else (0.0,) * 3
        self.std = facts.preprocess.std if facts.preprocess else (1.0,) * 3

    of_training = frozenset(inspect.signature(__init__).parameters)

    def _predicts(self, num_answers: int, num_classes: int) -> None:
        """Completes the constructor of a subclass; the arguments are those of PatchMetrics."""
        self.val_metrics, self.test_metrics = (
            PatchMetrics(num_answers, num_classes) for _ in range(2)
        )
        self.train()  # Lightning trains in the modes that it finds

    @classmethod
    def for_scoring(
        cls,
        weights: str,
        facts: Facts,
        recorded: dict[str, Any],
        read_state: Callable[[], dict[str, Tensor]],
    ) -> Self:
        own = {name: value for name, value in recorded.items() if name not in cls.of_training}
        module = cls(pretrained=weights, facts=facts, **own)
        module.load_state_dict(read_state())  # model/ has the encoder alone
        return module

    def _computing(self) -> nn.Module:
        return self

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.model.named_parameters()
        yield from (pair for pair in self.named_parameters() if not pair[0].startswith("model."))

    @abstractmethod
    def drawn(self, uniforms: Float[Tensor, "b numbers n"]) -> Corruption:
        """What the images are corrupted by, from numbers in [0, 1)."""

    @abstractmethod
    def forward(
        self, images: Float[Tensor, "b 3 h w"], corruption: Corruption
    ) -> Float[Tensor, "b m o"]:
        """Predictions at the corrupted patches."""

    @abstractmethod
    def targets(self, images: Float[Tensor, "b 3 h w"]) -> Tensor:
        """Targets of all patches, `b n o`."""

    def loss(self, predicted: Float[Tensor, "b m o"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean over the corrupted patches."""
        return F.mse_loss(predicted, targets)

    def answers(self, predicted: Float[Tensor, "b m o"]) -> Tensor:
        """The predictions in the form of the targets."""
        return predicted

    def shown(self, targets: Tensor, images: Float[Tensor, "b 3 h w"]) -> Int[Tensor, "b 3 h w"]:
        """Pixels from 0 to 255 of what the targets of these images' patches look like."""
        size = (images.shape[-2], images.shape[-1])
        return to_bytes(from_patches(targets, size), self.mean, self.std)

    def corruption(
        self, images: Tensor, indices: Tensor | None = None, seed: int | None = None
    ) -> Corruption:
        """Drawn for the step, or, for an evaluation, from `indices` and the data's `seed`, by
        default that of the Trainer's data."""
        p = self.model.patch_size
        shape = (self.numbers, (images.shape[-2] // p) * (images.shape[-1] // p))
        if indices is None:
            seeds = (self.draws or batch_draws(len(images))).image_seeds()
        else:
            data = None if seed is not None else counting_data(self.trainer)
            seed = data.seed if data is not None else seed or 0
            seeds = [step_seed(seed, index, -1) for index in indices.tolist()]
        generator = torch.Generator()
        drawn = [torch.rand(shape, generator=generator.manual_seed(seed)) for seed in seeds]
        uniforms = torch.stack(drawn) if drawn else torch.empty(0, *shape)
        return self.drawn(uniforms).to(images.device)

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
        pixels = to_bytes(images, self.mean, self.std)
        parts = patch_pixels(pixels, patch_size)
        gray = torch.full_like(parts[0, 0], 128)
        answers = self.answers(self(images, corruption))
        at = corruption.chosen[..., None]
        filled = targets.scatter(1, at.expand_as(answers), answers.to(targets.dtype))
        marks = torch.zeros_like(parts[:, :, :1]).scatter(1, at, 1)
        return {
            "images": pixels,
            "seen": from_patches(corruption(parts, gray), size),
            "predicted": self.shown(filled, images),
            "true": self.shown(targets, images),
            "corrupted": from_patches(marks.expand(-1, -1, patch_size**2), size),
        }

    def headline(self, split: str, metrics: dict[str, float]) -> str:
        return f"{super().headline(split, metrics)}\n{constant_note(split, metrics)}".rstrip()

    def scored(self, images: Float[Tensor, "b 3 h w"], corruption: Corruption) -> Pair:
        """Predictions `b m _` and targets `b m o` of which the loss is taken."""
        return self(images, corruption), rows(self.targets(images), corruption.chosen)

    def training_loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images = batch[0]
        return self.loss(*self.scored(images, self.corruption(images)))

    def _evaluate(self, batch: tuple[Tensor, ...], metrics: PatchMetrics) -> None:
        images, _, indices = batch
        # Also of no image: shards are gathered by all.
        predicted, targets = self.scored(images, self.corruption(images, indices))
        if len(images):
            metrics.update(predicted, targets, self.loss(predicted, targets), len(images))
