"""The progress line can be switched off; the result is printed all the same."""

from tests.command import TINY, Vit


def test_without_a_progress_bar_only_the_final_lines_are_left(vit: Vit) -> None:
    args = ("fit", "-c", "quickstart", *TINY, "--data.batch_size=600", "--trainer.max_epochs=1")
    done = vit(
        *args, "--trainer.enable_progress_bar=false", "--model.learning.freeze_backbone=true"
    )
    assert done.status == 0, done.err
    assert "img/s" not in done.err and "eval mode" not in done.err
    assert "runs/quickstart" in done.out
    again = vit("test", "runs/quickstart", "--trainer.enable_progress_bar=false")
    assert again.status == 0 and "loss" in again.out
