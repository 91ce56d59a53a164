"""MaskedPatchPrediction: the paper's self-supervised pre-training (ViT, appendix B.1.2).

The encoder predicts the colours of corrupted patches from the others. Shapes: b batch, h w pixels,
n patches, m corrupted patches an image, d width, o answers a patch.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from vit.errors import UserError, check_range
from vit.models.vision_transformer import VisionTransformer
from vit.preprocessing import Preprocess
from vit.seeds import step_seed
from vit.shapes import Float, Int
from vit.training.counted_data import counting_data
from vit.training.draws import batch_draws
from vit.training.masking import (
    DRAWS,
    FRACTION,
    NUM_COLORS,
    Corruption,
    Target,
    color_classes,
    color_pixels,
    draw_corruption,
    from_patches,
    num_outputs,
    patch_pixels,
    rows,
    to_bytes,
)
from vit.training.network_training import NetworkTraining, build_network, default_optimizer
from vit.training.patch_metrics import PatchMetrics
from vit.training.schedules import Schedule

EXAMPLES = 8
"""Images that the report shows."""


class MaskedPatchPrediction(NetworkTraining[VisionTransformer, PatchMetrics]):
    """Trains an encoder to predict the colours of corrupted patches; it needs no labels.

    Args:
        name: Model name as `vit models` lists it, a ViT or hybrid. Default: what `pretrained`
            holds, or vit_ti16.
        architecture: Fields of the model's configuration to change, such as
            {patch_size: 4, dropout: 0.1}; recompute: true saves memory, and computes layers twice.
        pretrained: Weights to start from: a run, a model directory, a file, or a hub address.
        image_size: Pixels, one side or (height, width). This and the next two follow from the data
            on the command line. Default: that of the weights or the model.
        channels: Only RGB images, None, can be predicted.
        preprocess: Evaluation preprocessing, whose mean and std lead back to the pixels; without it
            images are taken to be in [0, 1].
        target: What is predicted of a corrupted patch. mean_color: the upper three bits of its mean
            red, green and blue, one of 512 classes. colors_4x4: the same for each pixel of the
            patch downsized to 4 x 4, sixteen answers. pixels: all its pixels as normalised, by
            least squares.
        fraction: Share of the patches of each image that is corrupted, in (0, 1); of these 80 %
            become [mask], 10 % another patch of the image, 10 % stay.
        optimizer: Any torch optimizer; it gets parameter groups in which only kernels decay.
        schedule: Warm-up and decay of the learning rate.
        compile: Compiles the encoder's layers with torch.compile, in place.
    """

    labelled = False
    monitor = "val/loss"

    def __init__(
        self,
        name: str | None = None,
        *,
        architecture: dict[str, Any] | None = None,
        pretrained: str | None = None,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        preprocess: Preprocess | None = None,
        target: Target = "mean_color",
        fraction: float = 0.5,
        optimizer: OptimizerCallable = default_optimizer,
        schedule: Schedule | None = None,
        compile: bool = False,
    ) -> None:
        if channels is not None:
            raise UserError("masked patches are predicted for RGB images; leave out data.channels")
        super().__init__(
            preprocess=preprocess, optimizer=optimizer, schedule=schedule, compile=compile
        )
        check_range("fraction", fraction, FRACTION)
        self.target: Target = target
        self.fraction = fraction
        network, self.load_report = build_network(
            name,
            pretrained,
            architecture,
            image_size=image_size,
            channels=channels,
            num_classes=0,
        )
        if not isinstance(network, VisionTransformer):
            raise UserError(
                "masked patch prediction needs patches: name a ViT or a hybrid, not a ResNet"
            )
        self.model = network
        patch_size, width = network.patch_size, network.config.width
        if network.config.grid == (1, 1):
            raise UserError(
                f"the image is a single patch of {patch_size} pixels: nothing is left to predict "
                "it from; choose a smaller model.architecture.patch_size"
            )
        # The layers between the tokens and a head of classes take no part.
        for part in (network.attn_pool, network.pre_logits):
            if part is not None:
                part.requires_grad_(False)
        self.mask_token = nn.Parameter(torch.zeros(width))
        nn.init.normal_(self.mask_token, std=0.02)
        self.predictor = nn.Linear(width, num_outputs(target, patch_size))
        nn.init.zeros_(self.predictor.weight)
        nn.init.zeros_(self.predictor.bias)
        self.mean = preprocess.mean if preprocess else (0.0,) * 3
        self.std = preprocess.std if preprocess else (1.0,) * 3
        self.val_metrics, self.test_metrics = self._metrics(), self._metrics()
        self.train()  # Lightning trains in the modes that it finds

    @classmethod
    def for_scoring(
        cls,
        weights: str,
        of_data: dict[str, Any],
        recorded: dict[str, Any],
        read_state: Callable[[], dict[str, Tensor]],
    ) -> Self:
        target, fraction = recorded["target"], recorded["fraction"]
        module = cls(pretrained=weights, **of_data, target=target, fraction=fraction)
        module.load_state_dict(read_state())  # model/ lacks the mask token and the predictor
        return module

    def _metrics(self) -> PatchMetrics:
        classes = 0 if self.target == "pixels" else NUM_COLORS
        return PatchMetrics(self.predictor.out_features // max(classes, 1), classes)

    def _computing(self) -> nn.Module:
        return self

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.model.named_parameters()
        yield "mask_token", self.mask_token
        yield from self.predictor.named_parameters(prefix="predictor")

    def forward(
        self, images: Float[Tensor, "b 3 h w"], corruption: Corruption
    ) -> Float[Tensor, "b m o"]:
        """Predictions at the corrupted patches: logits, 512 an answer, or pixels."""
        # With precision bf16-true, images still come in float32.
        patches, grid = self.model.embed(images.to(self.dtype))
        tokens = self.model.encode(corruption(patches, self.mask_token), grid)
        # Where the final norm follows the pooling, it is here; elsewhere fc_norm does nothing.
        features = self.model.fc_norm(
            rows(tokens[:, self.model.num_prefix_tokens :], corruption.chosen)
        )
        return self.predictor(features).float()

    def targets(self, images: Float[Tensor, "b 3 h w"]) -> Tensor:
        """Targets of all patches: colour classes `b n o`, or pixels `b n 3*p*p`."""
        patch_size = self.model.patch_size
        if self.target == "pixels":
            return patch_pixels(images.float(), patch_size)
        side = 4 if self.target == "colors_4x4" else 1
        return color_classes(to_bytes(images, self.mean, self.std), patch_size, side)

    def corruption(self, images: Tensor, indices: Tensor | None = None) -> Corruption:
        """Drawn for the step, or, for an evaluation, from the data's seed and `indices`."""
        p = self.model.patch_size
        shape = (DRAWS, (images.shape[-2] // p) * (images.shape[-1] // p))
        if indices is None:
            seeds = (self.draws or batch_draws(len(images))).image_seeds()
        else:
            data = counting_data(self.trainer)
            seed = 0 if data is None else data.seed
            seeds = [step_seed(seed, index, -1) for index in indices.tolist()]
        generator = torch.Generator()
        drawn = [torch.rand(shape, generator=generator.manual_seed(seed)) for seed in seeds]
        uniforms = torch.stack(drawn) if drawn else torch.empty(0, *shape)
        return draw_corruption(uniforms, self.fraction).to(images.device)

    def loss(self, predicted: Float[Tensor, "b m o"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean over the corrupted patches of cross-entropy, in nats an answer, or squared error."""
        if self.target == "pixels":
            return F.mse_loss(predicted, targets)
        return F.cross_entropy(predicted.reshape(-1, NUM_COLORS), targets.flatten())

    @torch.inference_mode()
    def pictures(
        self, images: Float[Tensor, "b 3 h w"], indices: Tensor
    ) -> dict[str, Int[Tensor, "b _ h w"]]:
        """Whole numbers from 0 to 255: `images`, `seen`, `predicted` and `true` colours.

        `seen` is gray in masked patches; `corrupted` is 1 in corrupted patches, else 0. The
        arguments are normalised images and their places in the set.
        """
        patch_size, size = self.model.patch_size, (images.shape[-2], images.shape[-1])
        corruption, targets = self.corruption(images, indices), self.targets(images)
        pixels = to_bytes(images, self.mean, self.std)
        parts = patch_pixels(pixels, patch_size)
        gray = torch.full_like(parts[0, 0], 128)
        answers = self(images, corruption)
        if self.target != "pixels":
            answers = answers.unflatten(-1, (-1, NUM_COLORS)).argmax(-1)
        at = corruption.chosen[..., None]
        filled = targets.scatter(1, at.expand_as(answers), answers.to(targets.dtype))
        marks = torch.zeros_like(parts[:, :, :1]).scatter(1, at, 1)
        return {
            "images": pixels,
            "seen": from_patches(corruption(parts, gray), size),
            "predicted": self._shown(filled, size),
            "true": self._shown(targets, size),
            "corrupted": from_patches(marks.expand(-1, -1, patch_size**2), size),
        }

    def examples(self, data: Any, split: str) -> dict[str, np.ndarray] | None:
        """`pictures` of some images of a split, spread over it; None if none can be read.

        uint8 `n h w 3`; `corrupted` is bool `n h w`.
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
        return {**arrays, "corrupted": arrays["corrupted"][..., 0] > 0}

    def _shown(self, targets: Tensor, size: tuple[int, int]) -> Int[Tensor, "b 3 h w"]:
        """Pixels from 0 to 255 of an image of `size`, from the targets of its patches."""
        if self.target == "pixels":
            return to_bytes(from_patches(targets, size), self.mean, self.std)
        return from_patches(color_pixels(targets, self.model.patch_size), size)

    def training_loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images = batch[0]
        corruption = self.corruption(images)
        return self.loss(self(images, corruption), rows(self.targets(images), corruption.chosen))

    def _evaluate(self, batch: tuple[Tensor, ...], metrics: PatchMetrics) -> None:
        images, _, indices = batch
        corruption = self.corruption(images, indices)
        predicted = self(images, corruption)  # also of no image: shards are gathered by all
        if len(images):
            targets = rows(self.targets(images), corruption.chosen)
            metrics.update(predicted, targets, self.loss(predicted, targets))
