"""Generated pages are those of the committed results, and Table 6 is counted as they say."""

import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from benchmarks import notebooks
from benchmarks.lib import pages
from benchmarks.papers.compute import run as compute
from benchmarks.parity import families, parity
from vit.extensions.compute.devices import held
from vit.models.resnet import StdConv2d, pad_same
from vit.models.zoo import model_config
from vit.weights.building import build_empty

ROOT = pages.ROOT


@pytest.fixture(autouse=True)
def _check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script compares its page instead of writing it."""
    monkeypatch.setattr(sys, "argv", ["", "--check"])


SCRIPTS = ["benchmarks/notebooks.py", "benchmarks/readme.py"]
SCRIPTS += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").rglob("*page.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_page_is_up_to_date(script: str) -> None:
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert done.value.code == 0, f"run {script}"


def test_the_readme_names_every_script() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    paths = [path for path in (ROOT / "benchmarks").rglob("*.py") if path.parent.name != "lib"]
    names = {path.parent.name if path.stem == "run" else path.stem for path in paths}
    assert len(text.splitlines()) <= 70
    assert {name for name in names if name not in text} <= {"__init__", "planted_page"}


def test_a_notebook_is_its_page_behind_what_a_hosted_one_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in notebooks.PAGES:
        page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        document = json.loads(notebooks.path_of(name).read_text(encoding="utf-8"))
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in document["cells"]]
        assert cells.pop(0) == ("code", notebooks.HOSTED)
        if name != "notebook":
            _, files = cells.pop(0)
            assert notebooks.FILES in files
            assert ("!vit fit" in files) == ("runs/my_photos-finetune" in page)
        parts = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells]
        assert "\n\n".join(parts).replace("](../", "](") == page.strip()
        assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
        assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    monkeypatch.chdir(tmp_path)
    exec(re.sub("^!.*", "", notebooks.FILES, flags=re.MULTILINE), {})
    assert len(list(tmp_path.glob("my_photos/*/*.png"))) == 30


def test_table_6_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "CHECKED", ["bit_r50x1"])  # the rest equals closed formulas
    assert compute.main() == 0, "run python -m benchmarks.papers.compute.run"


def test_memory_of_devices_is_counted_as_the_results_say() -> None:
    content = pages.load("results/sharded_memory")
    for row in content["rows"]:
        network = build_empty(model_config(row["model"]))
        assert held(network, row["precision"], row["strategy"], row["devices"]) == row["bytes"]
    for kind, first in content["trained"]["processes"][0].items():
        counted = content["trained"]["counted"]
        near = pytest.approx(sum(counted.values()), rel=0.02)
        assert first == (near if kind == "peak" else counted[kind])


@pytest.mark.parametrize("script", [parity, families])
def test_a_page_of_measured_logits_is_that_of_its_results(script: ModuleType) -> None:
    pytest.importorskip("timm")
    name = script.__name__.rpartition(".")[2]
    [file] = (ROOT / "benchmarks" / "results").glob(f"{name}*.json")
    document = pages.load(f"results/{file.stem}")
    page = script.PAGE.read_text(encoding="utf-8")
    texts = {"summary": script.summary(document), "table": script.text(document)}
    assert pages.filled(script.PAGE, **texts) == page


def test_padding_is_counted_as_a_sum_of_ones_counts_it() -> None:
    for name in ("bit_r50x1", "r26_vit_s32"):
        model, counts = build_empty(model_config(name)), []

        def met(conv, inputs, output, counts=counts) -> None:
            side, stride = conv.kernel_size[0], conv.stride[0]
            ones, kernel = torch.ones(1, 1, *inputs[0].shape[-2:]), torch.ones(1, 1, side, side)
            same = pad_same(ones, side, stride)
            padded = same if conv.same else F.pad(ones, [side // 2] * 4)
            covered = F.conv2d(padded, kernel, stride=stride)
            zeros = covered.numel() * side**2 - int(covered.sum())
            passes = 2 if conv.in_channels == 3 else 3
            counts.append(2 * passes * zeros * conv.in_channels * conv.out_channels)

        for module in model.modules():
            if isinstance(module, StdConv2d):
                module.register_forward_hook(met)
        model(torch.empty(1, 3, 224, 224, device="meta"))
        assert sum(counts) == compute.padding_flops(name) > 0
