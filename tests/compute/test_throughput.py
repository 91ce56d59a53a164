"""Measuring: turns, warm-up, and the search for the largest batch."""

import pytest
import torch

from tests.compute.conftest import shallow_candidate
from vit.compute.memory import activations
from vit.compute.throughput import Rate, Subject, largest, measure


def test_models_take_turns_and_the_first_round_does_not_count() -> None:
    models = [shallow_candidate("vit_ti16", (s, s)) for s in (32, 64)]
    subjects = [Subject(model=model, batch_size=2) for model in models]
    lines: list[str] = []
    measure(subjects, torch.device("cpu"), "fp32", repetitions=2, report=lines.append)
    turns = [line for line in lines if ":" in line]
    assert [line.split(":")[0] for line in turns] == [
        "warming up", "warming up", "repetition 1/2", "repetition 1/2", "repetition 2/2",
        "repetition 2/2",
    ]  # fmt: skip
    assert [line.split()[-2] for line in turns] == ["32", "64"] * 3
    for subject in subjects:
        assert len(subject.inference.values) == len(subject.training.values) == 2
        assert min(subject.inference.values + subject.training.values) > 0
        assert subject.peak == 0  # a CPU does not tell


def test_what_is_kept_is_measured_per_image() -> None:
    model = shallow_candidate("vit_ti16", (64, 64))
    assert model.config is not None
    for batch_size in (1, 3):
        subject = Subject(model=model, batch_size=batch_size)
        measure([subject], torch.device("cpu"), "fp32", repetitions=1)
        predicted = activations(model.config, "fp32").kept
        assert subject.kept == pytest.approx(predicted, rel=0.005)


def test_a_rate_is_the_middle_repetition_with_its_reach() -> None:
    rate = Rate(values=[9.0, 10.0, 13.0])
    assert rate.to_dict() == {"median": 10.0, "min": 9.0, "max": 13.0, "n": 3}


@pytest.mark.parametrize("start", [1, 50, 100, 101, 1000])
@pytest.mark.parametrize("most", [0, 1, 7, 100])
def test_the_largest_batch_is_found_from_any_prediction(start: int, most: int) -> None:
    tried = []

    def fits(batch_size: int) -> bool:
        tried.append(batch_size)
        return batch_size <= most

    found = largest(fits, start)
    assert found <= most <= found + max(1, found // 32)
    assert len(tried) < 25
