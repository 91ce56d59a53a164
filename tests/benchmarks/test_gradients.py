"""benchmarks/papers/complexity/gradients.py: norms of Jacobians, against matrix powers."""

import pytest
import torch

from benchmarks.papers.complexity.gradients import jacobian_norms, main, power_norms


def test_norms_of_a_linear_network_are_those_of_its_powers() -> None:
    generator = torch.Generator().manual_seed(3)
    width, count, places = 6, 9, [1, 2, 5, 9]
    inputs, states = torch.randn(2, width, width, generator=generator, dtype=torch.float64) / 3
    tokens = torch.randn(count, width, generator=generator, dtype=torch.float64)

    def layer(x: torch.Tensor) -> torch.Tensor:
        state, outputs = torch.zeros(width, dtype=torch.float64), []
        for token in x[0]:
            state = inputs @ token + states @ state
            outputs.append(state)
        return torch.stack(outputs)[None]

    # Directions whose outer products add up to the identity's: the mean is the norm itself.
    directions = torch.eye(width, dtype=torch.float64) * width**0.5
    measured = jacobian_norms(layer, tokens, places, directions)
    assert measured == pytest.approx(power_norms(inputs, states, places), rel=1e-9)


def test_attention_keeps_what_recurrence_loses() -> None:
    rows = {row["network"]: row["norms"][0] for row in main(["--quick"])}
    assert {*rows} == {"rnn", "lstm", "gru", "attention", "linear", "closed form"}
    assert rows["rnn"][-1] < 1e-3 * rows["rnn"][1]
    assert rows["attention"][-1] > 0.1 * rows["attention"][1]
