"""`vit runs` lists what is there, finished or not."""

import json
import os
from pathlib import Path

import pytest

from tests.command import TINY, Vit
from vit.runs.records import HEADER


@pytest.mark.usefixtures("finishing")
def test_runs_are_listed_with_score_and_state(vit: Vit, photos: Path) -> None:
    assert vit("runs").status == 2
    done = vit("fit", "-c", "cifar10", "--data", photos, "--steps", "2", *TINY)
    assert done.status == 0, done.err
    [run] = Path("runs").iterdir()
    accuracy = json.loads((run / "summary.json").read_text())["metrics"]["test/acc1"]
    unfinished = Path("runs/group/stopped")
    unfinished.mkdir(parents=True)
    (unfinished / "config.yaml").write_text((run / "config.yaml").read_text())
    (unfinished / "metrics.csv").write_text("step,val/acc1\n6,0.25\n13,0.5\n20,")
    (Path("runs") / "foreign").mkdir()
    (Path("runs") / "foreign" / "config.yaml").write_text("a: 1\n")
    os.utime(unfinished / "config.yaml", (1, 1))
    os.utime(unfinished / "metrics.csv", (2, 2))
    listed = vit("runs")
    first, second = (line.split() for line in listed.out.splitlines())
    assert first[:4] == [str(run), "test", "acc1", f"{accuracy:.4f}"] and first[-1] == "finished"
    assert second[:4] == [str(unfinished), "val", "acc1", "0.5000"]
    assert second[-3:] == ["at", "step", "14"]
    rows = json.loads(vit("runs", "runs/group", "--json").out)
    assert [row["state"] for row in rows] == ["at step 14"]
    assert "finished" not in (run / "report.html").read_text()
    again = vit("test", run, "--data", f"{photos}/", "--json")  # its own images, typed again
    assert json.loads(again.out)["test/acc1"] == accuracy and "split as it was" in again.err
    assert vit("test").status == 2
    assert "; type: vit classify" in vit("predict", run, photos).err


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ('{"finished": true, "metrics": {"test/acc1": "high"}}', "metrics: test/acc1=high is not"),
        ('{"finished": true, "metrics": [1]}', "metrics=[1] is not a mapping or null"),
        ('{"finished": "yes"}', "finished=yes is not true or false or null"),
        ("[1]", "[1] is not a mapping"),
        ('{"finished": tr', "Expecting value"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_one_bad_summary_leaves_the_others_in_the_list(summary: str, why: str, vit: Vit) -> None:
    for name in ("bad", "good"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "config.yaml").write_text(HEADER)
    Path("runs/good/summary.json").write_text('{"finished": true, "metrics": {"test/acc1": 0.5}}')
    Path("runs/bad/summary.json").write_text(summary)
    listed = vit("runs")
    assert listed.status == 0
    rows = dict(line.split(maxsplit=1) for line in listed.out.splitlines())
    assert rows.keys() == {"runs/bad", "runs/good"}
    assert rows["runs/good"].startswith("test acc1 0.5000") and rows["runs/bad"].startswith("- ")
    [line] = listed.err.splitlines()
    assert line.startswith("note: runs/bad/summary.json is damaged") and why in line
