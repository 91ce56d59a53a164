"""Classes that are the leaves of a tree and are named by paths, such as animal/bird/petrel.

Shapes: b batch, k classes, l levels.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is not needed to check names of classes
    from torch import Tensor


def node_path(text: str) -> str:
    """The path without empty names and without blanks around names."""
    return "/".join(filter(None, map(str.strip, text.split("/"))))


def inner_class(classes: Sequence[str]) -> tuple[str, str] | None:
    """A class that is not a leaf and a class below it; None if all are leaves."""
    names = set(classes)
    for name in classes:
        above = name
        while above := above.rpartition("/")[0]:
            if above in names:
                return above, name
    return None


class LabelTree:
    """The nodes above classes, level by level.

    Level 1 is the top, the last level that of the deepest classes. A class higher up is in all
    levels below its own too, so that the nodes of a level divide up all classes.

    Attributes: `nodes`, the names of the nodes of each level.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        import torch

        paths = [name.split("/") for name in classes]
        depth = max(map(len, paths))
        above = [["/".join(path[:level]) for path in paths] for level in range(1, depth + 1)]
        self.nodes = [list(dict.fromkeys(names)) for names in above]
        places = [{name: i for i, name in enumerate(nodes)} for nodes in self.nodes]
        # Index of the node of each class in each level, int64 `l k`.
        self._of_class = torch.tensor(
            [[place[n] for n in names] for place, names in zip(places, above, strict=True)]
        )

    def best(self, probabilities: "Tensor") -> "tuple[Tensor, Tensor]":
        """Probability of the most probable node of each level, and its index in `nodes`.

        Both are `b l` on the CPU, for probabilities `b k` of the classes.
        """
        import torch

        values, places = [], []
        probabilities = probabilities.cpu().double()  # some accelerators have no float64
        for nodes, of_class in zip(self.nodes, self._of_class, strict=True):
            sums = probabilities.new_zeros(len(probabilities), len(nodes))
            value, place = sums.index_add_(1, of_class, probabilities).max(1, keepdim=True)
            values.append(value.clamp(max=1))
            places.append(place)
        return torch.cat(values, 1), torch.cat(places, 1)

    def scored(self, probabilities: "Tensor", labels: "Tensor") -> "tuple[Tensor, Tensor]":
        """Probabilities as by `best`, and true where the node is the label `b` or above it."""
        values, places = self.best(probabilities)
        return values, places == self._of_class[:, labels.cpu()].T
