"""Loading maps the file into memory instead of copying it."""

import subprocess
import sys
from pathlib import Path

import pytest

from vit.extensions.formats.convert import convert
from vit.models.config import ViTConfig
from vit.weights.building import build_empty
from vit.weights.native import save_native

CONFIG = ViTConfig(
    image_size=32, patch_size=8, width=768, depth=2, mlp_dim=3072, num_heads=12, num_classes=9
)
# Writing to clear_refs resets VmHWM, so that imports do not count. Every weight is read once.
PEAK = """
import sys, torch
from vit.weights.pretrained import load_pretrained
def field(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) * 1024
open("/proc/self/clear_refs", "w").write("5")
before = field("VmRSS")
model = load_pretrained(sys.argv[1])[0]
sum(parameter.sum().item() for parameter in model.parameters())
print(field("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("layout", ["native", "timm"])
def test_the_peak_is_the_file_and_little_more(layout: str, tmp_path: Path) -> None:
    model = build_empty(CONFIG).to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.zero_()
    path = tmp_path / "native"
    save_native(path, model, classes=None, preprocess=None, extra={})
    if layout == "timm":
        path = tmp_path / "timm"
        convert(tmp_path / "native", path, "timm")
    size = (path / "model.safetensors").stat().st_size
    command = [sys.executable, "-W", "ignore", "-c", PEAK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.05 * size + 30e6  # modules that torch loads late
