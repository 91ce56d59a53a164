"""The labels below the images of a first batch."""

import numpy as np

from vit.extensions.reports.first_batch import caption


def test_captions_name_classes_and_shares() -> None:
    names = ["cat", "dog", "hen"]
    assert caption(np.array(1), names) == "dog"
    assert caption(np.array([0.3, 0.0, 0.7]), names) == "hen 0.70, cat 0.30"
    assert caption(np.array([1.0, 0.0, 1.0]), names) == "cat, hen"
    assert caption(np.zeros(3), names) == "no label"
