"""What a finished run reports."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from vit.runs.scoring import CollectPredictions


def collected(outputs: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> Any:
    """The callback after a test in batches of 8 images, in the order of `places`."""
    collect, nothing = CollectPredictions(), cast(Any, None)
    for part in places.split(8):
        batch = (torch.empty(len(part), 3, 1, 1), labels[part], part)
        collect.on_test_batch_end(nothing, nothing, outputs[part], batch, 0)
    return collect


def test_equal_scores_are_ranked_as_the_accuracy_ranks_them() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randint(0, 3, (500, 20), generator=generator).float() / 40  # many ties
    labels = torch.randint(0, 20, (500,), generator=generator)
    names = [str(i) for i in range(500)]
    found = collected(outputs, labels, torch.arange(500)).gathered(names)
    assert np.array_equal(found.top_classes[:, 0], outputs.argmax(-1).numpy())
    assert found.top_classes.shape == (500, 5)
    of_label = outputs.gather(1, labels[:, None])[:, 0]
    assert np.array_equal(found.label_probabilities, of_label.numpy())


@pytest.mark.parametrize("several", [False, True])
def test_answers_of_shuffled_batches_come_back_in_the_order_of_the_set(several: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.rand(50, 7, generator=generator)
    labels = (outputs > 0.5).float() if several else outputs.argmin(-1)
    collect = collected(outputs, labels, torch.randperm(50, generator=generator))
    found = collect.gathered([f"{i}.jpg" for i in range(50)])
    assert found.indices.tolist() == list(range(50))
    assert found.names[17] == "17.jpg"
    np.testing.assert_array_equal(found.labels, labels.numpy())
    first = np.take_along_axis(outputs.numpy(), found.top_classes, axis=1)
    np.testing.assert_array_equal(found.top_probabilities, first)
    if several:
        np.testing.assert_array_equal(found.probabilities(), outputs.numpy())


def test_few_scores_of_many_classes_are_kept() -> None:
    collect = collected(torch.rand(30, 20_000), torch.arange(30), torch.arange(30))
    assert sum(array.nbytes for row in collect._rows for array in row.values()) < 30 * 200
