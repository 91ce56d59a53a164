"""docs/compute.md matches the formulas."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_and_the_results_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "compute.py", "--check"])
    assert done.returncode == 0, "run python benchmarks/compute.py"
