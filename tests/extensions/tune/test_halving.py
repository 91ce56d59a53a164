"""The arithmetic of `vit tune`: rungs, plans, survivors, used time, differences."""

import math

import numpy as np
import pytest

from vit.errors import UserError
from vit.extensions.evaluation.paired import mean_difference
from vit.extensions.reports.intervals import Paired
from vit.extensions.transfer.divided import covered
from vit.extensions.tune.halving import Timing, planned, rungs, survivors
from vit.extensions.tune.space import SPACE, WITHOUT, Encoder, ordered, words
from vit.runs.predictions import Predictions

FREE = Timing(start=0.0, step=1.0)


def test_a_rung_has_a_third_of_the_cells_and_three_times_the_steps() -> None:
    assert rungs(27, 90) == [(27, 10), (9, 30), (3, 90)]
    assert rungs(9, 9) == [(9, 1), (3, 3), (2, 9)]
    assert rungs(3, 5) == [(3, 1), (2, 1), (2, 5)]


def test_the_cells_that_survive_are_the_best_ones_and_the_default() -> None:
    # Cell c has the score c at every length, but for the default, which is the worst.
    names = [str(c) for c in range(26)]
    best: list[str] = ["default", *names]
    for count in (9, 3, 1):
        scores = {name: -1.0 if name == "default" else float(name) for name in best}
        best = survivors(scores, count, "default") if count > 1 else best
        if count > 1:
            top = [str(c) for c in range(25, 25 - count + 1, -1)]
            assert best == [*top, "default"]
    assert best == ["25", "24", "default"]


def test_earlier_cells_survive_before_equal_ones_and_failed_ones_never_do() -> None:
    scores = {"default": 0.5, "a": 0.5, "b": 0.9, "c": None, "d": 0.5}
    assert survivors(scores, 3, "default") == ["b", "default", "a"]
    assert survivors(scores, 9, "default") == ["b", "default", "a", "d"]
    assert survivors({"default": None, "a": 0.1, "b": 0.2}, 2, "default") == ["b", "a"]


@pytest.mark.parametrize("start", [0.0, 5.0])
@pytest.mark.parametrize("budget", [400.0, 1_000.0, 7_200.0])
def test_final_runs_take_at_most_sixty_percent_of_the_budget(budget: float, start: float) -> None:
    timing = Timing(start, 0.5)
    cells, steps = planned(budget, timing, 1_000, 27, used=10.0)
    each = start + steps * 0.5
    search = sum(n * (start + length * 0.5) for n, length in rungs(cells, steps))
    assert 6 * each <= 0.6 * budget and 10 + search <= 0.4 * budget
    # One step or one cell more would not fit, or is not wanted.
    longer = 6 * (each + 0.5) > 0.6 * budget
    nine = sum(n * (start + length * 0.5) for n, length in rungs(9, steps + 1))
    assert longer or 10 + nine > 0.4 * budget or steps == 1_000
    more = sum(n * (start + length * 0.5) for n, length in rungs(cells + 1, steps))
    assert cells == 27 or 10 + more > 0.4 * budget


def test_a_plan_by_hand() -> None:
    # Without start-up 6 L <= 0.6 B gives L = B / 10; nine cells then take 9 L / 9 + 3 L / 3 + 2 L,
    # 0.4 B.
    assert planned(900.0, FREE, 10_000, 27) == (9, 90)
    # At the recipe's own length the rest is for more cells: 26 x 5 + 8 x 15 + 2 x 45 = 340 s.
    assert planned(900.0, FREE, 45, 27) == (26, 45)
    assert planned(9_000.0, FREE, 45, 12) == (12, 45)
    # At nine steps, of 36 s: nine cells take 9 + 9 + 18; four take 4 + 6 + 18.
    assert planned(90.0, FREE, 10_000, 27) == (9, 9)
    assert planned(90.0, FREE, 10_000, 27, used=8.0) == (4, 9)
    # Where start-up takes most of the time, fewer cells fit, and long trainings: of 720 s five
    # cells take 5 x 76.8 + 2 x 78.4 + 2 x 83.6 = 708.
    assert planned(1_800.0, Timing(76.0, 0.2), 38, 27) == (5, 38)


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_enough() -> None:
    timing = Timing(20.0, 1.0)
    with pytest.raises(UserError) as error:
        planned(100.0, timing, 100, 27)
    text = str(error.value)
    assert "9 steps of the default recipe take 29 s" in text
    # Final runs: 6 x 29 = 174 s; the search: 3 x 21 + 2 x 23 + 2 x 29 = 167 s.
    minutes = math.ceil(max(174 / 0.6, 167 / 0.4) / 60)
    assert text.endswith(f"give at least {minutes}m")
    assert planned(60.0 * minutes, timing, 100, 27)[0] >= 3


def test_time_of_processes_side_by_side_counts_once() -> None:
    assert covered([]) == 0
    assert covered([(5, 7), (0, 2), (1, 3), (1.5, 2.5), (10, 11)]) == 3 + 2 + 1


def answers(right: np.ndarray) -> Predictions:
    """Predictions of one label that are right for some images."""
    top = np.where(right, 0, 1)[:, None]
    return Predictions(
        indices=np.arange(len(right)), names=[""] * len(right), labels=np.zeros(len(right), int),
        top_classes=top, top_probabilities=np.ones_like(top), label_probabilities=top[:, 0],
    )  # fmt: skip


def test_the_interval_of_one_pair_is_that_of_paired_proportions() -> None:
    random = np.random.default_rng(0)
    before, after = random.random(50) < 0.5, random.random(50) < 0.7
    row = mean_difference([(answers(before), answers(after))])
    lost, gained = int((before & ~after).sum()), int((after & ~before).sum())
    expected = Paired(50, int(before.sum()), lost, gained)
    assert row["points"] == pytest.approx(-expected.drop)
    assert row["interval"] == pytest.approx([-end for end in reversed(expected.interval)])


def test_an_image_counts_by_its_mean_over_pairs() -> None:
    before, after = np.array([1, 0, 0, 1], bool), np.array([1, 1, 0, 0], bool)
    pairs = [(before, after), (before, before), (before, np.ones(4, bool))]
    row = mean_difference([(answers(a), answers(b)) for a, b in pairs])
    # Gains of the images: 0, 2/3, 1/3, -1/3; the interval has 1 and -1 beside them.
    assert row["points"] == pytest.approx(100 / 6)
    sample = [0, 2 / 3, 1 / 3, -1 / 3, 1, -1]
    mean = sum(sample) / 6
    spread = 1.959964 * math.sqrt(sum((g - mean) ** 2 for g in sample)) / 6
    assert row["interval"] == pytest.approx([100 * (mean - spread), 100 * (mean + spread)])
    assert (row["pairs"], row["images"]) == (3, 4)


ENCODERS = [Encoder("a.pth", "a.pth", (224, 224), 14), Encoder("x/b", "b", (96, 96), 16)]


def test_the_default_comes_first_then_its_changes_in_one_option() -> None:
    cells = ordered(ENCODERS, 0)
    changes = [len(cell) for cell in cells.values()]
    ones = 1 + sum(len(values) - 1 for values in SPACE.values())
    assert changes[: ones + 2] == [0, *[1] * ones, changes[ones + 1]] and changes[ones + 1] > 1
    assert [*cells][:2] == ["default", "encoder-b"]
    for cell in cells.values():
        assert not cell.keys() & WITHOUT.get(cell.get("method", ""), set())
    # 2 encoders and 2 sizes of 27 fine-tunings and 9 of LoRA, each of 2 lengths with and without a
    # teacher, and 1 probe.
    assert len(cells) == 4 * (4 * (27 + 9) + 1)
    others = [*cells][ones + 1 :]
    assert [*ordered(ENCODERS, 0)] == [*cells]
    assert {*[*ordered(ENCODERS, 1)][ones + 1 :]} == {*others}
    assert [*ordered(ENCODERS, 1)][ones + 1 :] != others


def test_words_of_a_cell_are_those_of_a_recipe_with_its_changes() -> None:
    default = ["--config=finetune", "--model.pretrained=a.pth", "--trainer.max_steps=9"]
    assert words({}, ENCODERS, 9) == [*default, "--trainer.max_epochs=-1"]
    cell = {"encoder": "b", "method": "lora", "rate": "0.3", "image_size": "0.5"}
    expected = ["--config=lora", "--model.pretrained=x/b", "--model.optimizer.lr=0.0003"]
    steps = ["--trainer.max_steps=4", "--trainer.max_epochs=-1"]
    expected += ["--data.image_size=[48, 48]", *steps]
    assert words(cell | {"steps": "0.5"}, ENCODERS, 9) == expected
    probe = ["--config=probe", "--model.pretrained=a.pth"]
    assert words({"method": "probe"}, ENCODERS, 9) == probe
    assert words({"augment": "strong"}, ENCODERS, 9)[-1] == "--data.augment.policy=vit.RandAugment"
