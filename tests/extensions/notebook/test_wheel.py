"""The notebook of docs/notebook.md runs from an installed wheel, outside of the repository."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.notebooks import HOSTED, path_of

ROOT = Path(__file__).parents[3]
FACTS = """
import vit
print("\\n" + json.dumps({
    "package": vit.__file__,
    "version": vit.__version__,
    "features": features.shape,
    "map": seen.shape,
    "right": exported.proof.agreeing,
    "files": sorted(path.name for path in run.path.iterdir()),
}))
"""


@pytest.mark.slow
def test_the_notebook_runs_from_a_wheel(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    cells = json.loads(path_of("notebook").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code.pop(0) == HOSTED
    code[0] = code[0].replace('"runs/digits"', '"runs/digits", steps=2')
    script = "\n".join(["import json, matplotlib", "matplotlib.use('agg')", *code, FACTS])
    variables = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["package"] == str(tmp_path / "site" / "vit" / "__init__.py")
    assert (facts["features"], facts["map"], facts["right"]) == ([8, 64], [1, 4, 4], 8)
    assert {"report.html", "summary.json", "model"} <= {*facts["files"]}
    assert facts["version"] in Path(wheel).name
