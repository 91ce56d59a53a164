"""The losses, Sinkhorn's rounds and the centre against a second person's loops, in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.extensions.ssl import loops
from vit.errors import UserError
from vit.extensions.recipes.ema import follow
from vit.extensions.ssl.losses import (
    Centre,
    class_token_loss,
    gram_loss,
    koleo_loss,
    masked_patch_loss,
    sinkhorn,
)
from vit.extensions.ssl.settings import Teacher

drawn = settings(derandomize=True, deadline=None, max_examples=25)
SEEDS, SIZES = st.integers(0, 2**31), st.integers(2, 5)
TEMPERATURES = st.sampled_from([0.04, 0.1, 1.0])


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def check(ours: Callable[[Tensor], Tensor], loop: Callable[[Tensor], Tensor], at: Tensor) -> None:
    """Equal values within 1e-9 and gradients within 1e-7."""
    values, gradients = [], []
    for function in (ours, loop):
        point = at.clone().requires_grad_()
        value = function(point)
        value.backward()
        assert point.grad is not None
        values.append(value.detach())
        gradients.append(point.grad)
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)


@drawn
@given(SEEDS, st.integers(0, 6), SIZES, SIZES, TEMPERATURES)
def test_class_tokens_are_compared_as_in_the_loop_over_pairs_of_crops(
    seed: int, local: int, images: int, prototypes: int, temperature: float
) -> None:
    teacher = normal(seed + 1, 2, images, prototypes).softmax(-1)
    check(
        lambda student: class_token_loss(student, teacher, temperature),
        lambda student: loops.class_token_loss(student, teacher, temperature),
        normal(seed, 2 + local, images, prototypes),
    )


@drawn
@given(SEEDS, st.lists(st.integers(0, 4), min_size=2, max_size=8), SIZES, TEMPERATURES)
def test_masked_patches_are_compared_as_in_the_loop_over_crops(
    seed: int, masked: list[int], prototypes: int, temperature: float
) -> None:
    masked[0] = max(masked[0], 1)  # the gradient of no patch is of no tensor
    teacher = normal(seed + 1, sum(masked), prototypes).softmax(-1)
    weights = torch.cat([torch.full((n,), 1 / n, dtype=torch.float64) for n in masked if n])
    check(
        lambda student: masked_patch_loss(student, teacher, weights, len(masked), temperature),
        lambda student: loops.masked_patch_loss(
            student.split(masked), teacher.split(masked), temperature
        ),
        normal(seed, sum(masked), prototypes),
    )


def test_a_batch_in_which_no_crop_is_masked_has_no_loss_of_patches() -> None:
    none = torch.zeros(0, 4, dtype=torch.float64)
    assert float(masked_patch_loss(none, none, none[:, 0], 4, 0.1)) == 0


@drawn
@given(SEEDS, SIZES, SIZES, st.booleans())
def test_koleo_is_that_of_the_loop_over_pairs_of_images(
    seed: int, images: int, width: int, copied: bool
) -> None:
    features = normal(seed, images, width)
    if copied and images > 2:
        features[1] = features[0]
    check(koleo_loss, loops.koleo_loss, features)


def test_koleo_of_two_opposite_features_is_minus_the_logarithm_of_two() -> None:
    assert float(koleo_loss(torch.tensor([[1.0, 0], [-3, 0]]).double())) == pytest.approx(
        -math.log(2), abs=1e-7
    )


def test_koleo_of_copies_alone_is_zero_with_finite_gradients() -> None:
    features = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    koleo_loss(features).backward()
    assert koleo_loss(features.detach()) == 0
    assert features.grad is not None and not features.grad.any()


def test_koleo_of_bfloat16_is_computed_in_float32() -> None:
    features = normal(0, 4, 8).bfloat16()
    exact = loops.koleo_loss(features.double())
    assert float(koleo_loss(features)) == pytest.approx(float(exact), rel=1e-5)


def test_koleo_of_one_image_is_refused() -> None:
    with pytest.raises(UserError, match="two images"):
        koleo_loss(torch.ones(1, 4))


@drawn
@given(SEEDS, SIZES, SIZES, SIZES)
def test_gram_is_that_of_the_loop_over_pairs_of_patches(
    seed: int, images: int, patches: int, width: int
) -> None:
    reference = normal(seed + 1, images, patches, width)
    check(
        lambda student: gram_loss(student, reference),
        lambda student: loops.gram_loss(student, reference),
        normal(seed, images, patches, width),
    )


@drawn
@given(SEEDS, SIZES, SIZES, st.sampled_from([1, 3, 50]), TEMPERATURES)
def test_sinkhorn_is_that_of_the_loop(
    seed: int, samples: int, prototypes: int, rounds: int, temperature: float
) -> None:
    logits = normal(seed, samples, prototypes)
    ours = sinkhorn(logits, temperature, rounds)
    torch.testing.assert_close(
        ours, loops.sinkhorn(logits, temperature, rounds), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(ours.sum(1), torch.ones(samples).double(), rtol=1e-12, atol=0)


def test_sinkhorn_of_large_logits_does_not_overflow() -> None:
    logits = 3 * normal(0, 4, 6)
    torch.testing.assert_close(
        sinkhorn(logits + 1_000, 0.04), loops.sinkhorn(logits, 0.04), rtol=1e-6, atol=1e-9
    )


def test_sinkhorn_at_a_low_temperature_leaves_no_prototype_out() -> None:
    cosines = torch.full((8, 16), -0.2) + 0.05 * normal(0, 8, 16)
    cosines[:, :2] = 0.9
    shares = sinkhorn(cosines.float(), 0.008)
    assert shares.dtype == torch.float32
    expected = loops.sinkhorn(cosines.double(), 0.008)
    torch.testing.assert_close(shares.double(), expected, rtol=1e-4, atol=1e-9)


def update(centre: Centre, logits: Tensor) -> None:
    centre.add(logits)
    centre.move()


@drawn
@given(SEEDS, SIZES, SIZES, st.sampled_from([0.0, 0.9, 0.99]), TEMPERATURES)
def test_a_centre_is_that_of_the_loop_over_20_steps(
    seed: int, rows: int, prototypes: int, momentum: float, temperature: float
) -> None:
    steps = [normal(seed + step, rows, prototypes) for step in range(20)]
    centre = Centre(prototypes, momentum)
    expected = loops.centres(steps, momentum)
    for number, logits in enumerate(steps):
        torch.testing.assert_close(
            centre.probabilities(logits, temperature),
            loops.centred_probabilities(logits, expected[number], temperature),
            rtol=1e-9,
            atol=1e-9,
        )
        update(centre, logits)
        torch.testing.assert_close(
            centre.centre.double(), expected[number + 1], rtol=1e-9, atol=1e-9
        )


def test_a_step_without_masked_patches_leaves_the_centre() -> None:
    centre = Centre(3)
    update(centre, normal(0, 4, 3))
    before = centre.centre.clone()
    update(centre, torch.zeros(0, 3, dtype=torch.float64))
    assert torch.equal(centre.centre, before)


@pytest.mark.parametrize("first", [0.9, 0.996])
def test_a_teacher_is_the_average_of_the_loop_over_20_steps(first: float) -> None:
    students, teacher = [normal(step, 7) for step in range(1, 21)], normal(0, 7)
    momenta = [loops.momentum_at(step, 20, first) for step in range(20)]
    expected = loops.averages(students, teacher, momenta)
    for step, (student, after) in enumerate(zip(students, expected, strict=True)):
        follow([teacher], [student], Teacher(momentum=first).momentum_at(step, 20))
        torch.testing.assert_close(teacher, after, rtol=0, atol=1e-9)
