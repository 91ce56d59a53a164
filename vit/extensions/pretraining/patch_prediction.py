"""PatchPrediction: the module that learns an objective without labels.

Shapes: b batch, h w pixels, n patches, m predicted patches an image, o answers a patch.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, Self

import numpy as np
import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from vit.errors import UserError
from vit.extensions.pretraining.masking import (
    Corruption,
    from_patches,
    patch_pixels,
    rows,
    to_bytes,
)
from vit.extensions.pretraining.objective import Objective, Pair
from vit.extensions.pretraining.patch_metrics import PatchMetrics
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.seeds import step_seed
from vit.shapes import Float, Int
from vit.training.counted_data import counting_data
from vit.training.draws import batch_draws
from vit.training.network_training import NetworkTraining, build_network, default_optimizer
from vit.training.schedules import Schedule

EXAMPLES = 8
"""Images that the report shows."""


class PatchPrediction(NetworkTraining[VisionTransformer, PatchMetrics]):
    """Trains an encoder to predict patches of an image from others.

    Args:
        name: Model name as `vit models` lists it, a ViT or, where patches may overlap, a hybrid.
            Default: what `pretrained` holds, or vit_ti16.
        objective: The patches that are hidden, what is predicted of them, and by which layers.
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

    def __init__(
        self,
        name: str | None = None,
        *,
        objective: Objective,
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
        self.model = check_encoder(network, objective)
        # The layers between the tokens and a head of classes take no part.
        for part in (network.attn_pool, network.pre_logits):
            if part is not None:
                part.requires_grad_(False)
        self.objective, target = objective, objective.target
        self.caption = objective.caption.format(note=target.note)
        for layer in objective.layers(self.model, fresh=self.load_report is None).items():
            setattr(self, *layer)
        kinds = target.num_answers(network.patch_size), target.num_classes
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
        own = {name: value for name, value in recorded.items() if name not in cls.of_training}
        module = cls(pretrained=weights, facts=facts, **own)
        module.load_state_dict(read_state())  # model/ has the encoder alone
        return module

    def forward(self, images: Float[Tensor, "b 3 h w"], corruption: Corruption) -> Tensor:
        """Predictions at the corrupted patches, `b m o`."""
        # With precision bf16-true, images still come in float32.
        patches, grid = self.model.embed(images.to(self.dtype))
        return self.objective.predict(self, patches, grid, corruption).to(images.dtype)

    def targets(self, images: Float[Tensor, "b 3 h w"]) -> Tensor:
        """Targets of all patches, `b n o`."""
        return self.objective.target.targets(images, self.model.patch_size, self.preprocess)

    def corruption(self, images: Tensor, indices: Tensor | None = None) -> Corruption:
        """Drawn for the step, or, for an evaluation, from the data's seed and `indices`."""
        p = self.model.patch_size
        shape = (self.objective.numbers, (images.shape[-2] // p) * (images.shape[-1] // p))
        if indices is None:
            seeds = (self.draws or batch_draws(len(images))).image_seeds()
        else:
            data = counting_data(self.trainer)
            seed = 0 if data is None else data.seed
            seeds = [step_seed(seed, index, -1) for index in indices.tolist()]
        generator = torch.Generator()
        drawn = [torch.rand(shape, generator=generator.manual_seed(seed)) for seed in seeds]
        uniforms = torch.stack(drawn) if drawn else torch.empty(0, *shape)
        return self.objective.draw(uniforms).to(images.device)

    @torch.inference_mode()
    def pictures(
        self, images: Float[Tensor, "b 3 h w"], indices: Tensor
    ) -> dict[str, Int[Tensor, "b _ h w"]]:
        """Whole numbers from 0 to 255: `images`, `seen`, `predicted` and `true` colours.

        `seen` is gray in masked patches; `corrupted` is 1 in corrupted patches, else 0. The
        arguments are normalised images and their places in the set.
        """
        patch_size, size = self.model.patch_size, (images.shape[-2], images.shape[-1])
        target = self.objective.target
        corruption, targets = self.corruption(images, indices), self.targets(images)
        pixels = to_bytes(images, self.preprocess)
        parts = patch_pixels(pixels, patch_size)
        gray = torch.full_like(parts[0, 0], 128)
        answers = self(images, corruption)
        if target.num_classes:
            answers = answers.unflatten(-1, (-1, target.num_classes)).argmax(-1)
        at = corruption.chosen[..., None]
        filled = targets.scatter(1, at.expand_as(answers), answers.to(targets.dtype))
        marks = torch.zeros_like(parts[:, :, :1]).scatter(1, at, 1)
        return {
            "images": pixels,
            "seen": from_patches(corruption(parts, gray), size),
            "predicted": target.shown(filled, images, patch_size, self.preprocess),
            "true": target.shown(targets, images, patch_size, self.preprocess),
            "corrupted": from_patches(marks.expand(-1, -1, patch_size**2), size),
        }

    def examples(self, data: Any, split: str) -> dict[str, Any] | None:
        """`pictures` of some images of a split, spread over it; None if none can be read.

        uint8 `n h w 3`; `corrupted` is bool `n h w`; and the caption.
        """
        number, opened = len(data.image_set(split)), {}
        for index in np.linspace(0, number - 1, min(EXAMPLES, number)).round().astype(int).tolist():
            with suppress(UserError):  # with on_error=skip the run left it out, too
                opened[index] = data.preprocess(data.open_image(split, index))
        if not opened:
            return None
        images = data.preprocess.normalize(torch.stack(list(opened.values()))).to(self.device)
        pictures = self.eval().pictures(images, torch.tensor(list(opened)))
        arrays = {
            name: values.permute(0, 2, 3, 1).to("cpu", torch.uint8).numpy()
            for name, values in pictures.items()
        }
        corrupted = arrays["corrupted"][..., 0] > 0
        return {**arrays, "corrupted": corrupted, "caption": self.caption}

    def headline(self, split: str, metrics: dict[str, float]) -> str:
        from vit.extensions.reports.pretraining import (
            pretraining_headline,  # heavy: imports matplotlib
        )

        _, loss, note = pretraining_headline(split, metrics)
        return f"{split} loss  {loss}\n{note}".rstrip()

    def scored(self, images: Float[Tensor, "b 3 h w"], corruption: Corruption) -> Pair:
        """Predictions `b m _` and targets `b m o` of which the loss is taken."""
        targets = rows(self.targets(images), corruption.chosen)
        return self.objective.pairs(self(images, corruption), targets, corruption)

    def training_loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        corruption = self.corruption(batch[0])
        return self.objective.loss(*self.scored(batch[0], corruption), corruption)

    def _evaluate(self, batch: tuple[Tensor, ...], metrics: PatchMetrics) -> None:
        images, _, indices = batch
        # Also of no image: shards are gathered by all.
        predicted, targets = self.scored(images, self.corruption(images, indices))
        if len(images):
            loss = self.objective.target.loss(predicted, targets)
            metrics.update(predicted, targets, loss, len(images))


def check_encoder(network: Any, objective: Objective) -> VisionTransformer:
    """The network as an encoder. UserError for one whose patches the objective cannot predict."""
    if not isinstance(network, VisionTransformer) or not (
        objective.overlapping or network.config.stem_depths is None
    ):
        pixels = "a ViT, not a hybrid, whose patches overlap, nor a ResNet, which has none"
        kinds = "a ViT or a hybrid, not a ResNet" if objective.overlapping else pixels
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
