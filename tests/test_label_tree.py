"""Classes in a tree: sums, answers that back off, and their scores, in closed form."""

import numpy as np
import pytest
import torch

from vit.extensions.trust.trust_answers import deepest
from vit.label_tree import LabelTree, inner_class, node_path

CLASSES = ["animal/bird/gull", "animal/bird/petrel", "animal/cat", "ship"]
SURE = [0.25, 0.5, 0.125, 0.125]


@pytest.mark.parametrize(
    ("confidence", "answer"),
    [
        (0.0, ("animal/bird/petrel", 0.5)),
        (0.49, ("animal/bird/petrel", 0.5)),
        (0.5, ("animal/bird", 0.75)),  # not above
        (0.75, ("animal", 0.875)),
        (0.875, ("", 1.0)),
        (0.99, ("", 1.0)),
    ],
)
def test_the_answer_is_the_deepest_node_above_the_confidence(confidence, answer):
    assert [*deepest(LabelTree(CLASSES), torch.tensor([SURE]), confidence)] == [answer]


def test_a_class_of_the_first_level_is_an_answer_of_the_last_one():
    values, places = LabelTree(CLASSES).best(torch.tensor([[0, 0, 0.1, 0.9], [0.3, 0.3, 0.3, 0.1]]))
    assert places.tolist() == [[1, 2, 3], [0, 0, 0]]  # of equal sums the first
    assert (values > 0.8).tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_trees_are_answered_and_scored_as_by_sets_of_names(dtype):
    """Above one half the nodes that qualify lie on one path."""
    random = np.random.default_rng(0)
    for _ in range(20):
        paths = ["/".join(random.choice(list("abc"), random.integers(1, 4))) for _ in range(12)]
        classes = [p for p in dict.fromkeys(paths) if not any(q.startswith(f"{p}/") for q in paths)]
        logits = torch.from_numpy(random.normal(0, 3, (30, len(classes))))
        probabilities = logits.softmax(-1).to(dtype)
        labels, tree = torch.from_numpy(random.integers(0, len(classes), 30)), LabelTree(classes)
        nodes = {name[:i] for name in classes for i, c in enumerate(f"{name}/") if c == "/"}
        table = probabilities.double().numpy()

        def total(row, node, table=table, classes=classes):
            below = [k for k, name in enumerate(classes) if f"{name}/".startswith(f"{node}/")]
            return table[row, below].sum()

        for row, (answer, value) in enumerate(deepest(tree, probabilities, 0.6)):
            above = [node for node in nodes if total(row, node) > 0.6]
            assert answer == max(above, key=lambda n: n.count("/"), default="")
            assert value == (pytest.approx(min(total(row, answer), 1)) if answer else 1)
        values, right = tree.scored(probabilities, labels)
        depth = max(name.count("/") for name in classes) + 1
        assert values.shape == right.shape == (30, depth)
        for level in range(depth):
            cut = ["/".join(name.split("/")[: level + 1]) for name in classes]
            groups = list(dict.fromkeys(cut))
            sums = np.stack([table[:, np.array(cut) == g].sum(1) for g in groups], 1)
            expected = [groups[i] == cut[k] for i, k in zip(sums.argmax(1), labels, strict=True)]
            assert right[:, level].tolist() == expected
            assert values[:, level].numpy() == pytest.approx(sums.max(1).clip(max=1))
        assert (right[:, -1] == (probabilities.argmax(-1) == labels)).all()


def test_a_class_above_another_is_found():
    assert inner_class(CLASSES) is None
    assert inner_class([*CLASSES, "ani", "sh/ip"]) is None
    assert inner_class([*CLASSES, "animal/cat/tom/big"]) == ("animal/cat", "animal/cat/tom/big")
    assert node_path(" animal / bird//gull/") == "animal/bird/gull"
