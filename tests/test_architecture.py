"""docs/architecture.md: its files exist, and its table of imports is the tested rule."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import coloured, saved
from tests.test_rules import MAY_IMPORT

ROOT = Path(__file__).parents[1]
QUICKSTART = ("-c", "quickstart")
PHOTOS = ("--data", "photos", "--pretrained", "model")
MOST = {QUICKSTART: (45, 7_606), PHOTOS: (58, 9_539)}
"""Most files, and lines in them, from a command to the optimizer's step. They only fall."""
# Prints the number of lines in functions that run, per file, until the optimizer's first step.
TRACE = """
import json, os, sys
from collections import defaultdict
import lightning.pytorch, sklearn.datasets, torchmetrics.classification  # not traced: that is slow
import torchvision.transforms.v2
from vit.cli.main import main

root, lines = sys.argv[1] + "/", defaultdict(set)

def trace(frame, event, argument):
    code = frame.f_code
    in_function = code.co_flags & 1  # CO_OPTIMIZED
    if not in_function or not code.co_filename.startswith(root + "vit/"):
        return None
    if event == "line":
        lines[code.co_filename.removeprefix(root)].add(frame.f_lineno)
    return trace

def stop(optimizer, *_):
    sys.settrace(None)
    print(json.dumps({name: len(numbers) for name, numbers in lines.items()}), flush=True)
    os._exit(0)

from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(stop)
sys.settrace(trace)
main(sys.argv[2:])
"""
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_on_the_page_is_in_the_tree() -> None:
    named = set(re.findall(r"`((?:vit|docs|configs|tests|benchmarks)/[^`\s]*|[^`\s]+\.py)`", PAGE))
    assert len(named) > 30
    named = {name for name in named if not name.startswith("vit_npz/")}  # of the example
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_table_of_imports_is_the_rule() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\w, -]+) \|$", PAGE.split("## Who may import whom")[1], re.M)
    assert rows.pop(0) == ("room", "may import")
    table = {room: set(cell.replace("-", "").split(", ")) - {""} for room, cell in rows}
    assert table.pop("cli") == {"every room"} and table.pop("runs") == {"every room but cli"}
    assert MAY_IMPORT["runs"] == set(table) and MAY_IMPORT["cli"] == {*table, "runs"}
    assert table == {room: MAY_IMPORT[room] for room in table}


def test_one_run_takes_25_lines() -> None:
    section = PAGE.split("## One run, in order\n")[1].split("\n## ")[0]
    assert len(section.strip().splitlines()) <= 25


@pytest.mark.parametrize("words", MOST, ids=" ".join)
def test_the_files_to_read_are_those_that_one_step_runs(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    section = PAGE.split("## Files to read")[1].split("\n## ")[0]
    listed = re.findall(r"`(vit/[^`]+\.py)`", section)
    assert len(listed) == len(set(listed))
    coloured(tmp_path / "photos")
    saved(tmp_path / "model")
    command = [sys.executable, "-c", TRACE, str(ROOT), "fit", *words]
    options = ["--trainer.max_steps=1", "--trainer.accelerator=cpu"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
    ran = json.loads(done.stdout.splitlines()[-1])
    assert len(ran) > 30, done.stderr
    read = {name for name, lines in ran.items() if lines > 10}
    lines = sum(len((ROOT / name).read_text().splitlines()) for name in read)
    assert read <= set(listed) and len(read) <= MOST[words][0] and lines <= MOST[words][1]
