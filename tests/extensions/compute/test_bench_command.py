"""`vit bench`: what it measures, counted against closed forms; no times are asserted."""

import json

import pytest

from tests.command import Vit

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


def test_several_models_share_the_rounds_and_one_table(vit: Vit) -> None:
    models = ("vit_ti16", "torchvision/resnet18")
    lines = vit("bench", *models, "--batch-size", 1, 2, *QUICK[:-1]).out.splitlines()
    assert [line.split(",")[0] for line in lines[4:8]] == [m for m in models for _ in range(2)]
    assert len({len(line) for line in lines[4:8]}) == 1


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
