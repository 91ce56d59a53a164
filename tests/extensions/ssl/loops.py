"""The quantities of continued self-supervised training, by loops over images, crops and patches.

Written from the papers alone, in float64, by somebody who has not read the package's code:

- DINO, arXiv:2104.14294, equations 1 to 5: class tokens, centre, average of the weights;
- iBOT, arXiv:2111.07832, equations 2 and 3: masked patches;
- DINOv2, arXiv:2304.07193, section 4: the sum of both, KoLeo, Sinkhorn-Knopp in three rounds;
- KoLeo, Sablayrolles et al., arXiv:1806.03198, equation 5;
- SwAV, arXiv:2006.09882, appendix A: Sinkhorn-Knopp;
- Gram anchoring, DINOv3, arXiv:2508.10104, section 4.2.

Tensors are of torch, so that autograd gives the gradients of the loops.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Logarithms of the probabilities of one row of logits."""
    scaled = [logit / temperature for logit in logits]
    largest = max(float(value.detach()) for value in scaled)
    total = sum((torch.exp(value - largest) for value in scaled), torch.zeros(()).double())
    return torch.stack([value - largest - torch.log(total) for value in scaled])


def cross_entropy(teacher: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """H(teacher, student) of one crop or patch, from the student's logits."""
    log_student = log_probabilities(logits, temperature)
    terms = (p * log_p for p, log_p in zip(teacher, log_student, strict=True))
    return -sum(terms, torch.zeros(()).double())


def class_token_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Equation 3 of DINO: mean over each pair of a teacher's global crop and another crop of the
    student, and over images. `student` (crops, images, prototypes), `teacher` (2, ...)."""
    terms = []
    for one in range(2):
        for other in range(len(student)):
            if other == one:
                continue
            for image in range(student.shape[1]):
                terms.append(cross_entropy(teacher[one, image], student[other, image], temperature))
    return torch.stack(terms).mean()


def masked_patch_loss(
    student: Sequence[Tensor], teacher: Sequence[Tensor], temperature: float
) -> Tensor:
    """Mean over crops of the mean over a crop's masked patches; a crop without masks counts as 0.

    `student` and `teacher`: for each crop, logits and probabilities (its patches, prototypes).
    """
    total = torch.zeros(()).double()
    for logits, targets in zip(student, teacher, strict=True):
        parts = [
            cross_entropy(target, row, temperature)
            for row, target in zip(logits, targets, strict=True)
        ]
        if parts:
            total = total + sum(parts) / len(parts)
    return total / len(student)


def koleo_loss(features: Tensor, epsilon: float = 1e-8) -> Tensor:
    """-1/n times the sum of log(distance to the nearest other image), of unit features.

    An image with a copy of itself in the batch counts as 0.
    """
    units = [row / torch.sqrt((row * row).sum()) for row in features]
    total = torch.zeros(()).double()
    for i, one in enumerate(units):
        distances = [
            torch.linalg.vector_norm(one - other) for j, other in enumerate(units) if j != i
        ]
        nearest = min(distances, key=lambda distance: float(distance.detach()))
        if nearest > 0:
            total = total - torch.log(nearest + epsilon)
    return total / len(units)


def gram_loss(student: Tensor, reference: Tensor) -> Tensor:
    """Mean over images and pairs of patches of the squared difference of their cosines."""
    terms = []
    for ours, theirs in zip(student, reference, strict=True):
        for i in range(len(ours)):
            for j in range(len(ours)):
                terms.append((_cosine(ours[i], ours[j]) - _cosine(theirs[i], theirs[j])) ** 2)
    return torch.stack(terms).mean()


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum() / torch.sqrt((one * one).sum()) / torch.sqrt((other * other).sum())


def sinkhorn(logits: Tensor, temperature: float, rounds: int = 3) -> Tensor:
    """SwAV: exp(logits / temperature), prototypes and samples scaled in turn to equal sums."""
    samples, prototypes = logits.shape
    table = [[math.exp(float(v) / temperature) for v in row] for row in logits]
    for _ in range(rounds):
        for k in range(prototypes):
            column = sum(table[i][k] for i in range(samples))
            for i in range(samples):
                table[i][k] /= column * prototypes
        for i in range(samples):
            row = sum(table[i])
            for k in range(prototypes):
                table[i][k] /= row * samples
    # Each sample has 1 / samples of the mass, and is a distribution after this.
    return torch.tensor([[samples * v for v in row] for row in table], dtype=torch.float64)


def centred_probabilities(logits: Tensor, centre: Tensor, temperature: float) -> Tensor:
    """The teacher's probabilities: softmax((logits - centre) / temperature), row by row."""
    return torch.stack([log_probabilities(row - centre, temperature).exp() for row in logits])


def centres(steps: Sequence[Tensor], momentum: float) -> list[Tensor]:
    """The centre at first and after each step: c = m c + (1 - m) mean of the rows."""
    result = [torch.zeros(steps[0].shape[1], dtype=torch.float64)]
    for rows in steps:
        mean = torch.zeros_like(result[0])
        for row in rows:
            mean += row / len(rows)
        result.append(momentum * result[-1] + (1 - momentum) * mean)
    return result


def momentum_at(step: int, steps: int, start: float, end: float = 1.0) -> float:
    """DINO: from start to end along a half cosine."""
    return end - (end - start) * (math.cos(math.pi * step / steps) + 1) / 2


def averages(student: Sequence[Tensor], start: Tensor, momenta: Sequence[float]) -> list[Tensor]:
    """The teacher after each step: m teacher + (1 - m) student."""
    teacher, result = start.clone(), []
    for weights, momentum in zip(student, momenta, strict=True):
        teacher = torch.tensor(
            [
                momentum * old + (1 - momentum) * new
                for old, new in zip(teacher.tolist(), weights.tolist(), strict=True)
            ],
            dtype=torch.float64,
        )
        result.append(teacher)
    return result
