"""docs/speed.md matches the results files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "speed_page.py", "--check"])
    assert done.returncode == 0, "run python benchmarks/speed_page.py"
