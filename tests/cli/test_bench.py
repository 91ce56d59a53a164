"""`vit bench`: what it measures, counted against closed forms; no times are asserted."""

import json

import pytest
import torch

from tests.cli.conftest import Vit
from vit.compute.timing import Times, in_turns

# One round: of several, the middle share is not quite the share at the middle time.
QUICK = ("--image-size=32", "--rounds=1", "--precision=fp32", "--device=cpu", "--json")


def test_the_share_of_the_limit_is_operations_over_time(vit: Vit) -> None:
    forward = json.loads(vit("bench", "vit_ti16", "--batch-size", 1, 2, *QUICK).out)
    training = json.loads(vit("bench", "vit_ti16", "--batch-size", 2, "--train", *QUICK).out)
    # Five tokens of ViT-Ti at 32 pixels, two operations a multiply-add.
    tokens, width = 5, 192
    macs = 4 * 3 * 16**2 * width + 1000 * width
    macs += 12 * (12 * tokens * width**2 + 2 * tokens**2 * width)
    step = 3 * macs - 4 * 3 * 16**2 * width  # the pixels get no gradient
    assert [row["batch_size"] for row in forward["rows"]] == [1, 2]
    for report, count in ((forward, macs), (training, step)):
        for row in report["rows"]:
            rate = row["images_per_second"]
            assert rate == pytest.approx(1000 * row["batch_size"] / row["milliseconds_per_batch"])
            share = 2 * count * rate / report["limit_flops_per_second"]["fp32"]
            assert row["utilisation"] == pytest.approx(share)
    assert forward["what"] != training["what"]
    assert forward["suggestion"] in forward["rows"]


def test_the_table_names_the_best(vit: Vit) -> None:
    done = vit("bench", "vit_ti16", "--batch-size", 2, *QUICK[:-1])
    assert done.status == 0
    assert "best here: fp32 with batches of 2" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vit_ti61"], "unknown model 'vit_ti61'"),
        (["vit_b16", "--image-size", "30"], "not a multiple of patch_size=16"),
        (["vit_b16", "--rounds", "0"], "0"),
        (["vit_b16", "--batch-size", "0"], "0"),
    ],
)
def test_a_mistake_gets_one_line(vit: Vit, arguments: list[str], message: str) -> None:
    done = vit("bench", *arguments)
    assert done.status == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_calls_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = in_turns(calls, rounds=3, shortest=0.0)
    assert {name: len(found.values) for name, found in times.items()} == {"a": 3, "b": 3}
    assert order.index("b") < len(order) - order[::-1].index("a") - 1  # a again after b


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = Times((1.0, 2.0, 4.0)), Times((2.0, 6.0, 8.0))
    assert ours.faster_than(theirs) == 2.0
    assert theirs.median == 6.0
    assert ours.spread == pytest.approx(0.75)
    assert not torch.is_inference_mode_enabled()
