"""Loading maps the file into memory instead of copying it."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from vit.checkpoints.building import build_empty
from vit.checkpoints.convert import convert
from vit.checkpoints.native import save_native
from vit.models.config import ViTConfig

CONFIG = ViTConfig(
    image_size=32, patch_size=8, width=768, depth=4, mlp_dim=3072, num_heads=12, activation="gelu"
)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("case", ["vit, native", "vit, timm file"])
def test_the_peak_is_the_file_and_little_more(
    load_benchmark: Callable[[str], ModuleType], case: str, tmp_path: Path
) -> None:
    model = build_empty(CONFIG).to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.zero_()
    save_native(tmp_path / "native", model, classes=None, preprocess=None, extra={})
    path = tmp_path / "native"
    if case != "vit, native":
        convert(path, tmp_path / "timm", "timm")
        path = tmp_path / "timm"
    size = (path / "model.safetensors").stat().st_size
    script = load_benchmark("load_memory")
    result = script.measure(script.CASES[case], path)
    assert result["extra_bytes_touched"] < 1.05 * size + 30e6  # modules that torch loads late
