"""A loss of the user's own in place of ours."""

from dataclasses import fields

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.training.losses import Loss


class OwnLoss(Loss):
    """The row of the table `losses` for model.loss.function."""

    def __post_init__(self) -> None:
        for field in fields(Loss):
            name, default = field.name, field.default
            if name not in ("function", "head_bias") and getattr(self, name) != default:
                raise UserError(
                    f"model.loss.function is the whole loss, and model.loss.{name} another one; "
                    f"use --model.loss.{name} {'null' if default is None else default}"
                )
        parts = self.function.parameters() if isinstance(self.function, nn.Module) else ()
        if any(parameter.requires_grad for parameter in parts):
            raise UserError(
                f"model.loss.function: {type(self.function).__name__} has parameters to train, and "
                "those of the model alone are trained and saved"
            )

    def __call__(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        assert self.function is not None
        if isinstance(self.function, nn.Module):
            self.function.to(logits.device)  # its constants
        # In float32 at least, as in Loss.
        return self.function(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)
