from pathlib import Path

import pytest

from tests.command import logged, table
from vit.training.csv_log import MetricsCsv


def log(logger: MetricsCsv, *entries: tuple[int, dict[str, float]]) -> None:
    for step, metrics in entries:
        logger.log_metrics(metrics, step)
        logger.save()  # Lightning saves after every entry


def test_losses_and_scores_of_a_step_share_a_row(tmp_path: Path) -> None:
    log(MetricsCsv(tmp_path), (0, {"loss": 3.0}), (1, {"loss": 2.0}), (1, {"acc": 0.5}))
    assert logged(tmp_path) == [
        {"step": "0", "loss": "3.0", "acc": ""},
        {"step": "1", "loss": "2.0", "acc": "0.5"},
    ]


def test_rows_of_steps_that_are_taken_again_go_and_earlier_ones_stay(tmp_path: Path) -> None:
    log(MetricsCsv(tmp_path), *((step, {"loss": float(step)}) for step in range(5)))
    # At the checkpoint three steps were taken: numbers 0, 1 and 2.
    resumed = MetricsCsv(tmp_path, resumed_step=3)
    log(resumed, (3, {"loss": -3.0}), (3, {"new": 4.0}), (4, {"loss": 5.0}))
    assert [row["loss"] for row in logged(tmp_path)] == ["0.0", "1.0", "2.0", "-3.0", "5.0"]
    assert [row["new"] for row in logged(tmp_path)] == ["", "", "", "4.0", ""]


def test_a_new_run_starts_a_new_file(tmp_path: Path) -> None:
    log(MetricsCsv(tmp_path), (0, {"loss": 1.0}))
    log(MetricsCsv(tmp_path), (0, {"acc": 0.0}))
    assert logged(tmp_path) == [{"step": "0", "acc": "0.0"}]


def test_the_file_is_appended_to(tmp_path: Path) -> None:
    logger = MetricsCsv(tmp_path)
    log(logger, (0, {"loss": 1.0}))
    path = tmp_path / "metrics.csv"
    inode, size = path.stat().st_ino, path.stat().st_size
    log(logger, (1, {"loss": 1.0}))
    assert path.stat().st_ino == inode and path.stat().st_size > size
    logger.finalize("success")
    assert len(logged(tmp_path)) == 2


def test_seconds_go_on_where_the_first_run_stopped(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,seconds\n0,5000.0\n1,9000.0\n")
    log(MetricsCsv(tmp_path, 1), (1, {"loss": 1.0}))
    seconds = [float(row["seconds"]) for row in table(tmp_path / "metrics.csv")]
    assert seconds[0] == 5000 and 5000 <= seconds[1] < 5100


def test_a_run_that_logs_nothing_changes_nothing(tmp_path: Path) -> None:
    """Such as a resume that fails while the checkpoint is read."""
    log(MetricsCsv(tmp_path), *((step, {"loss": float(step)}) for step in range(5)))
    before = (tmp_path / "metrics.csv").read_bytes()
    MetricsCsv(tmp_path, 2).finalize("failed")
    assert (tmp_path / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        b"a,b\n1,2\n",
        b"step,a\nx,2\n",
        b"step,a\n1,2,3\n",
        b"step\n1\n\xff\xfe\n",
        b"\0\n",
        b"step,seconds,loss\n1,2.0,3.0",  # cut short by a crash
    ],
)
def test_rows_that_cannot_be_read_are_dropped(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(damage)
    log(MetricsCsv(tmp_path, 3), (3, {"loss": 1.0}))
    assert logged(tmp_path) == [{"step": "3", "loss": "1.0"}]
