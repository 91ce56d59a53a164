"""What the answers of a finished run are worth, measured on the images that it has.

Shapes: n images, k classes, d features.
"""

from typing import Any

from lightning.pytorch import Trainer

from vit.confidence import fit_temperature, set_scores
from vit.console import note, say
from vit.data.module import ImageData
from vit.inference.trust import Trust
from vit.runs.outputs import outputs_of
from vit.runs.unknown import measure_unknown
from vit.training.callbacks.linear_probe import LinearProbe


def measure(trainer: Trainer, model: Any, data: ImageData, summary: dict[str, Any]) -> Trust | None:
    """Sets the model's temperature, and returns what else says how far its answers are to be
    trusted; None without images that the weights were not trained on.

    `summary`: of the run, with the description of the weights; "unknown" is added to it. Every
    process must call it.
    """
    checkpoint, unknown = summary["checkpoint"], {}
    heads = [c.held_out for c in trainer.callbacks if isinstance(c, LinearProbe) and c.alone]  # pyright: ignore
    if data.splits.val is not None and trainer.limit_val_batches != 0:
        outputs, where = outputs_of(trainer, model, data, "val"), "validation images"
        if "score" in checkpoint or "val_losses" in checkpoint.get("by_size", {}):
            where += ", which also chose the weights"
        pairs = [] if outputs is None else [(outputs.logits, outputs.labels)]
        if outputs is not None:
            unknown, summary["unknown"] = measure_unknown(
                trainer, model, data, outputs, summary["split"]
            )
    else:
        if heads:
            unknown, summary["unknown"] = measure_unknown(
                trainer, model, data, None, summary["split"]
            )
        pairs = trainer.strategy.broadcast([pair for held_out in heads for pair in held_out])
        where = "training images, each by a head that was fitted without it"
    if not pairs:
        note("no validation images: probabilities get no temperature, and --coverage no sets")
        return None
    logits, labels = (tensor.cpu() for tensor in pairs[0])
    temperature = fit_temperature(logits, labels)
    model.temperature = None if temperature == 1 else temperature
    say(f"temperature {temperature:.3g}, fitted to {len(labels):,} {where}")
    scores = None
    if not data.multilabel:
        all_scores = set_scores((logits.double() / temperature).softmax(1))
        scores = all_scores.gather(1, labels[:, None])[:, 0].sort().values
    return Trust(
        measured_on=where, images=len(labels), temperature=temperature, scores=scores, **unknown
    )
