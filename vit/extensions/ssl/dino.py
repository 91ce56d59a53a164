"""DINOv2: a student learns the answers of a teacher, its own running average, to other crops and
to masked patches ("DINOv2", arXiv:2304.07193; facebookresearch/dinov2).

Shapes: b images, c crops, l local ones, n patches, m masked patches, d width, k prototypes.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from vit.errors import NOT_NEGATIVE, UserError, check_range
from vit.extensions.pretraining.block_masks import Masks, draw_masks
from vit.extensions.pretraining.patch_prediction import check_encoder, mask_token
from vit.extensions.recipes.ema import follow
from vit.extensions.recipes.multi_crop import GLOBAL_CROPS
from vit.extensions.ssl.crops import DinoData
from vit.extensions.ssl.heads import PrototypeHead
from vit.extensions.ssl.losses import (
    Centre,
    class_token_loss,
    gram_loss,
    koleo_loss,
    masked_patch_loss,
    sinkhorn,
)
from vit.extensions.ssl.settings import Heads, Pace, Teacher
from vit.extensions.ssl.watch import Watch
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.shapes import Float
from vit.training.budget import step_budget
from vit.training.counted_data import Batch
from vit.training.draws import batch_draws, set_depth
from vit.training.metrics import SplitMetrics
from vit.training.network_training import (
    NetworkTraining,
    build_network,
    build_optimizer,
    default_optimizer,
)
from vit.training.optimizers.param_groups import Group, param_groups
from vit.training.saving import Contents
from vit.training.schedules import Schedule
from vit.weights.sealed import is_sharded


class Dino(NetworkTraining[VisionTransformer, SplitMetrics]):
    """Trains a student without labels; `model` is its teacher, which is saved and loaded.

    Args:
        name: Model name as `vit models` lists it, a ViT or a hybrid. Default: what `pretrained`
            holds, or vit_ti16.
        architecture: Fields of the model's configuration to change, such as {drop_path: 0.1} of
            the student; recompute: true saves memory, and computes layers twice.
        pretrained: Weights that student and teacher start from: a run, a model directory, a file,
            or a hub address. The heads are fresh.
        weights: Of a file with both, the raw weights or their average (the default).
        heads: Prototypes, and sizes of the layers before them.
        teacher: Momentum and temperatures.
        masks: Masks of the student's global crops.
        pace: Rates of the parts, and the step at which they begin to learn.
        koleo: Weight of KoLeo, which spreads class tokens, for each of the two global crops.
        gram: Weight of the distance of the patches' cosines to those by the weights at the start.
        yardstick: A labelled folder or list, by which a run ends that harms its features.
        looks: Number of times that the yardstick is asked.
        optimizer: Any torch optimizer; it gets parameter groups in which only kernels decay.
        schedule: Warm-up and decay of the learning rate.
        compile: Compiles the layers of student and teacher with torch.compile, in place.
        facts: What follows from the images: `ImageData.facts`. They are RGB.
    """

    labelled = False
    data_module = DinoData
    monitor = "val/loss"  # of no image: see DinoData.splits

    def __init__(
        self,
        name: str | None = None,
        *,
        architecture: dict[str, Any] | None = None,
        pretrained: str | None = None,
        weights: Literal["raw", "average"] | None = None,
        heads: Heads = Heads(),
        teacher: Teacher = Teacher(),
        masks: Masks = Masks(),
        pace: Pace = Pace(),
        koleo: float = 0.1,
        gram: float = 0.0,
        yardstick: str | None = None,
        looks: int = 20,
        optimizer: OptimizerCallable = default_optimizer,
        schedule: Schedule | None = None,
        compile: bool = False,
        facts: Facts = Facts(),
    ) -> None:
        if facts.channels is not None:
            raise UserError("crops are changed as RGB images; leave out data.channels")
        check_range("model.koleo", koleo, NOT_NEGATIVE)
        check_range("model.gram", gram, NOT_NEGATIVE)
        if yardstick is not None:
            _ = DinoData(root=yardstick).splits  # a mistake is said before weights are read
        super().__init__(facts.preprocess, optimizer, schedule, compile=compile)
        network, self.load_report = build_network(
            name, pretrained, architecture, facts, weights=weights, num_classes=0
        )
        self.teacher, self.masks, self.pace = teacher, masks, pace
        self.koleo, self.gram = koleo, gram
        self.yardstick, self.looks = yardstick, looks
        self.model = check_encoder(network, overlapping=True)
        if not self.model.has_class_token:
            raise UserError("this task learns from the class token: set class_token: true")
        self._build_student(heads)
        self.train()  # Lightning trains in the modes that it finds

    of_training = frozenset(
        {"name", "architecture", "pretrained", "weights", "optimizer", "schedule", "compile"}
    )

    def _build_student(self, heads: Heads) -> None:
        """Copies the teacher, before anything is divided among processes."""
        width, kinds = self.model.config.width, 2 if heads.separate else 1
        sizes = {"hidden": heads.hidden, "bottleneck": heads.bottleneck}
        made = [PrototypeHead(width, heads.prototypes, **sizes) for _ in range(kinds)]
        self.student, self.heads = deepcopy(self.model), nn.ModuleList(made)
        # The layers between the tokens and a head of classes take no part.
        for part in (self.student.attn_pool, self.student.pre_logits):
            if part is not None:
                part.requires_grad_(False)
        self.teacher_heads = deepcopy(self.heads)
        self.anchor = deepcopy(self.model) if self.gram else None
        for module in self._frozen():
            module.requires_grad_(False)
        self.mask_token = mask_token(width)
        self.class_centre, self.patch_centre = Centre(heads.prototypes), Centre(heads.prototypes)

    @classmethod
    def for_scoring(cls, weights: str, *_: Any, **__: Any) -> Self:
        raise UserError(
            f"{weights}: the loss of task dino scores no weights; try `vit knn` or `vit probe`"
        )

    def extra(self) -> dict[str, Any]:
        return {**super().extra(), "encoder": "teacher, the running average of the student"}

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self._frozen():
            module.eval()  # no dropout or stochastic depth in what only answers
        return self

    def _frozen(self) -> list[nn.Module]:
        anchor = [] if self.anchor is None else [self.anchor]
        return [self.model, self.teacher_heads, *anchor]

    def guards(self) -> list[Callback]:
        return [*super().guards(), Watch(self.yardstick, self.looks)]

    def teacher_answers(self, images: Float[Tensor, "b 3 h w"]) -> tuple[Tensor, Tensor]:
        """Class tokens `b d`, and probabilities `b k` at the first temperature, for the watch."""
        tokens = self._tokens(self.model, images)[0]
        return tokens, self._probabilities(self.teacher_heads[0](tokens), self.class_centre, 0)

    def _probabilities(self, logits: Tensor, centre: Centre, step: int) -> Tensor:
        temperature = self.teacher.temperature_at(step, self.total_steps)
        if self.teacher.centring == "sinkhorn":
            return sinkhorn(logits, temperature)
        return centre.probabilities(logits, temperature)

    def _tokens(
        self, encoder: VisionTransformer, images: Tensor, masks: Tensor | None = None
    ) -> tuple[Float[Tensor, "c_b d"], Float[Tensor, "c_b n d"]]:
        """Class tokens and patches."""
        patches, grid = encoder.embed(images.to(self.dtype))
        if masks is not None:
            patches = torch.where(masks[..., None], self.mask_token.to(patches.dtype), patches)
        tokens = encoder.fc_norm(encoder.encode(patches, grid))
        return tokens[:, 0], tokens[:, encoder.num_prefix_tokens :]

    def forward(
        self, crops: Float[Tensor, "c_b 3 h w"], small: Tensor, masks: Tensor, step: int
    ) -> Tensor:
        """The loss of a batch. `crops`: the global ones, the first of all images and then the
        second; `small`: the local ones in the same way; `masks`: bool `c_b n`, on the CPU; `step`:
        that of the optimizer."""
        places = masks.flatten().nonzero().flatten().to(crops.device)
        weights = (1 / masks.sum(1, keepdim=True)).expand_as(masks)[masks].to(crops.device)
        classes, patches, anchored = self._answers(crops, places, step)
        alone = step < self._steps_until("student")
        temperature, images = self.teacher.student_temperature, len(crops) // GLOBAL_CROPS
        with torch.set_grad_enabled(torch.is_grad_enabled() and not alone):
            self._set_depth(0, GLOBAL_CROPS)
            tokens, outputs = self._tokens(self.student, crops, masks.to(crops.device))
            self._set_depth(GLOBAL_CROPS, len(small) // images)
            seen = self._tokens(self.student, small)[0] if len(small) else tokens[:0]
        logits = self.heads[0](torch.cat([tokens, seen])).unflatten(0, (-1, images))
        hidden = self.heads[-1](outputs.flatten(0, 1)[places])
        terms = {
            "class": class_token_loss(logits, classes, temperature),
            "patch": masked_patch_loss(hidden, patches, weights, len(crops), temperature),
        }
        if self.koleo:
            spread = torch.stack([koleo_loss(part) for part in tokens.chunk(GLOBAL_CROPS)]).sum()
            terms["koleo"] = self.koleo * spread
        if anchored is not None:
            terms["gram"] = self.gram * gram_loss(outputs, anchored)
        self.log_dict({f"train/{n}": v.detach() for n, v in terms.items()}, batch_size=images)
        loss = torch.stack([*terms.values()]).sum()
        return loss + self._nothing() if alone else loss

    def _nothing(self) -> Tensor | float:
        """Zero times what learns nothing in this step, which ddp waits for."""
        frozen = [*self.student.parameters(), self.mask_token]
        if any(map(is_sharded, frozen)):
            return 0.0
        return 0.0 * torch.stack([p.sum() for p in frozen if p.requires_grad]).sum()

    @torch.no_grad()
    def _answers(
        self, crops: Tensor, places: Tensor, step: int
    ) -> tuple[Float[Tensor, "2 b k"], Float[Tensor, "m k"], Tensor | None]:
        """The teacher's probabilities for class tokens and masked patches; the anchor's patches."""
        tokens, outputs = self._tokens(self.model, crops)
        rows = (tokens, outputs.flatten(0, 1)[places])
        logits = self.teacher_heads[0](rows[0]), self.teacher_heads[-1](rows[1])
        answers = []
        for each, centre in zip(logits, (self.class_centre, self.patch_centre), strict=True):
            answers.append(self._probabilities(each, centre, step))
            if self.teacher.centring == "centre":
                centre.add(each)
        anchored = None if self.anchor is None else self._tokens(self.anchor, crops)[1]
        return answers[0].unflatten(0, (GLOBAL_CROPS, -1)), answers[1], anchored

    def training_loss(self, batch: Batch) -> Tensor:
        if len(batch) == 3:
            raise UserError("task dino needs the crops of its DinoData; data.batch_size a number")
        first, _, _, second, small, numbers = batch
        crops, side = torch.cat([first, second]), self.model.patch_size
        if small.numel() and (over := small.shape[-1] % side):
            raise UserError(
                f"data.crops.local_size={small.shape[-1]} must be a multiple of the {side} pixels "
                f"of a patch, such as {max(small.shape[-1] - over, side)}"
            )
        grid = (crops.shape[-2] // side, crops.shape[-1] // side)
        draws = self.draws or batch_draws(len(first))
        masks = draw_masks(self.masks, GLOBAL_CROPS, draws, numbers.tolist(), grid)
        return self(crops, small.transpose(0, 1).flatten(0, 1), masks, self.trainer.global_step)

    def _set_depth(self, first: int, crops: int) -> None:
        """Gives the student's layers with stochastic depth the draws of a pass of so many crops of
        each image, those from `first` on, on any number of processes. Recomputed layers draw for
        themselves: in the backward pass these would be the draws of the last pass."""
        if (draws := self.draws) is not None and not self.student.activation_checkpointing:
            whole = draws.global_batch
            places = [crop * whole + place for crop in range(crops) for place in draws.places]
            draws = replace(draws, seed=draws.seed ^ first, places=places)
            set_depth(self.student, replace(draws, global_batch=crops * whole))

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        step, optimizer = self.trainer.global_step, self.trainer.optimizers[0]
        for group in optimizer.param_groups:
            waits = self._steps_until(group["part"])
            if step < waits:
                group["lr"] = 0.0
            elif step == waits > 0:  # what was counted before does not weigh on the first step
                for parameter in group["params"]:
                    optimizer.state.pop(parameter, None)
            if first := group["first_decay"]:
                group["weight_decay"] = self.pace.decay_at(first, step, self.total_steps)

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        super().on_train_batch_end()
        set_depth(self.student, None)

    def optimizer_step(self, *args: Any, **options: Any) -> None:
        """After the step, teacher and centres follow, before anything is saved."""
        step = self.trainer.global_step
        super().optimizer_step(*args, **options)
        follow(
            [*self.model.parameters(), *self.teacher_heads.parameters()],
            [*self.student.parameters(), *self.heads.parameters()],
            self.teacher.momentum_at(step, self.total_steps),
        )
        if self.teacher.centring == "centre":
            self.class_centre.move()
            self.patch_centre.move()

    @property
    def total_steps(self) -> int:
        total = step_budget(self.trainer)
        assert total is not None  # by `configure_optimizers`
        return total

    def _steps_until(self, part: str) -> int:
        """The step at which a part of the student begins to learn."""
        shares = {"student": self.pace.heads_alone, "last": self.pace.last_layer}
        return round(shares.get(part, 0.0) * self.total_steps)

    def configure_optimizers(self) -> Any:
        trainer = self.trainer
        if self.schedule.length is not None or step_budget(trainer) is None:
            raise UserError(
                "the teacher's momentum needs the run's length: set --steps or --epochs"
            )
        if self.gram and self.load_report is None:
            rule = "compares with pre-trained weights: give model.pretrained, or set it to 0"
            raise UserError(f"model.gram={self.gram:g} {rule}")
        if trainer.precision == "bf16-true":
            raise UserError("bf16-true rounds the teacher's steps away: take bf16-mixed")
        if self.teacher.centring == "sinkhorn" and trainer.accumulate_grad_batches > 1:
            raise UserError(
                "sinkhorn needs all images of a step at once, not accumulated batches: set "
                "model.teacher.centring=centre, or a larger data.batch_size"
            )
        return super().configure_optimizers()

    def make_optimizer(self) -> Any:
        pace, student, heads = self.pace, {"mask_token": self.mask_token}, {}
        student |= self.student.named_parameters()
        heads |= self.heads.named_parameters(prefix="heads")
        stem = {name: student.pop(name) for name in [*student] if name.startswith("patch_embed.")}
        last = {name: heads.pop(name) for name in [*heads] if ".last." in name}
        groups: list[Group] = []
        for part, named, decay, scale in (
            ("student", student, pace.layer_decay, 1.0),
            ("student", stem, pace.layer_decay, pace.patch_embed),
            ("heads", heads, 1.0, pace.heads),
            ("last", last, 1.0, pace.heads),
        ):
            for group in param_groups(
                named.items(),
                depth=len(self.student.layer_channels),
                layer_decay=decay,
                no_weight_decay=self.student.no_weight_decay(),
            ):
                groups.append({**group, "lr_scale": group["lr_scale"] * scale, "part": part})
        optimizer = build_optimizer(self.optimizer, groups)
        for group in optimizer.param_groups:
            group["first_decay"] = group["weight_decay"]
        return optimizer

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clips the norm of the student and of each head apart, as the official code does."""
        if gradient_clip_val is None or gradient_clip_algorithm == "value":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        nn.utils.clip_grad_norm_([*self.student.parameters(), self.mask_token], gradient_clip_val)
        for head in self.heads:
            nn.utils.clip_grad_norm_(head.parameters(), gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: Contents) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["vit"]["weights"] = "ema"

    def evaluate_batch(self, batch: Batch, metrics: SplitMetrics) -> None:
        raise AssertionError("no image is scored: see DinoData.splits")
