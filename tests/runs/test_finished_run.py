"""What a finished run reports."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from vit.runs.scoring import CollectPredictions


@pytest.mark.parametrize("several", [False, True])
def test_answers_of_shuffled_batches_come_back_in_the_order_of_the_set(several: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.rand(50, 7, generator=generator)
    labels = (outputs > 0.5).float() if several else outputs.argmin(-1)
    collect, nothing = CollectPredictions(), cast(Any, None)
    for part in torch.randperm(50, generator=generator).split(8):
        batch = (torch.empty(len(part), 3, 1, 1), labels[part], part)
        collect.on_test_batch_end(nothing, nothing, outputs[part], batch, 0)
    found = collect.gathered([f"{i}.jpg" for i in range(50)])
    assert found is not None and found.indices.tolist() == list(range(50))
    assert found.names[17] == "17.jpg"
    np.testing.assert_array_equal(found.labels, labels.numpy())
    first = np.take_along_axis(outputs.numpy(), found.top_classes, axis=1)
    np.testing.assert_array_equal(found.top_probabilities, first)
    if several:
        np.testing.assert_array_equal(found.probabilities(), outputs.numpy())
    else:
        of_label = np.take_along_axis(outputs.numpy(), labels.numpy()[:, None], axis=1)[:, 0]
        np.testing.assert_array_equal(found.label_probabilities, of_label)
        assert found.top_classes.shape == (50, 5)  # so that many classes take no more memory
