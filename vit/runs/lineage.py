"""Images that weights were trained on, by the record beside them."""

from pathlib import Path

from vit.console import note
from vit.data.sources import ImageSet
from vit.data.trained_on import Known, TrainedOn
from vit.weights.names import record_of


def known_by(weights: str | Path | None, *, before: bool = False) -> Known | None:
    """Images that weights learned, or their run before its own training; None without a record.

    UserError for a damaged one.
    """
    file = None if weights is None else record_of(weights)
    if file is None:
        return None
    record = TrainedOn.read(file)
    digests = record.before if before else record.all
    return Known(digests, str(weights)) if len(digests) else None


def note_seen(weights: str | Path, images: ImageSet, name: str) -> None:
    """Says how many of the images the weights learned."""
    if (known := known_by(weights)) is not None and (text := known.count(images, name)):
        note(text)
