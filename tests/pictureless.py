"""Fits without the pictures and the page at their end, which take most of a short fit's time."""

from collections.abc import Iterator

import pytest

from vit.extensions.reports import finisher

draw_pictures = finisher.finish
"""Of a run that has ended without them."""


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """A run's last finisher does nothing, in every test of a folder that imports this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finisher, "finish", lambda run: None)
        yield
