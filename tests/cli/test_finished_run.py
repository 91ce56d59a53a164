"""What a finished run reports."""

import numpy as np
import torch

from vit.cli.results import CollectPredictions


def collected(outputs: torch.Tensor, labels: torch.Tensor, batch: int) -> CollectPredictions:
    """The callback after a test in batches."""
    collect = CollectPredictions()
    indices = torch.arange(len(outputs))
    for start in range(0, len(outputs), batch):
        part = slice(start, start + batch)
        triple = (torch.empty(batch, 3, 1, 1), labels[part], indices[part])
        collect.on_test_batch_end(None, None, outputs[part], triple, start)  # type: ignore[arg-type]
    return collect


def test_equal_scores_are_ranked_as_the_accuracy_ranks_them() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randint(0, 3, (500, 20), generator=generator).float() / 40  # many ties
    labels = torch.randint(0, 20, (500,), generator=generator)
    found = collected(outputs, labels, 64).gathered([str(i) for i in range(500)])
    assert np.array_equal(found.top_classes[:, 0], outputs.argmax(-1).numpy())
    assert found.top_classes.shape == (500, 5)
    own = outputs.gather(1, labels[:, None])[:, 0]
    assert np.array_equal(found.label_probabilities, own.numpy())


def test_several_labels_keep_every_score() -> None:
    outputs = torch.rand(6, 9)
    labels = torch.eye(9)[:6]
    found = collected(outputs, labels, 4).gathered(list("abcdef"))
    assert found.top_classes.shape == (6, 9)
    assert np.array_equal(np.sort(found.top_classes, axis=1), np.tile(np.arange(9), (6, 1)))
