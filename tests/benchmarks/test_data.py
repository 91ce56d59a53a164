"""benchmarks/data.py on a few tiny files: all documented figures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


@pytest.fixture
def benchmark(load_benchmark):
    return load_benchmark("data")


def write(folder: Path, count: int, height: int, width: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for index in range(count):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        image = small.resize((width, height), Image.Resampling.BICUBIC)
        image.save(folder / f"{index:02}.jpg", quality=90)


def test_every_figure_is_there_and_the_pixels_agree(benchmark, tmp_path, monkeypatch, capsys):
    write(tmp_path / "photos" / "all", 6, 300, 400)
    write(tmp_path / "small" / "a", 8, 8, 8)
    write(tmp_path / "small" / "b", 8, 8, 8)
    sizes, out = tmp_path / "sizes", tmp_path / "out.json"
    run = ["data.py", str(tmp_path / "photos"), "--make-sizes", str(sizes)]
    monkeypatch.setattr(sys, "argv", run)
    benchmark.main()
    assert sorted(path.name for path in sizes.iterdir()) == ["2000", "500", "760"]
    assert Image.open(next((sizes / "2000").rglob("*.jpg"))).size == (1600, 1200)

    monkeypatch.setattr(benchmark, "CIFAR_BATCH", 4)
    folders = [str(sizes / "500"), str(sizes / "2000")]
    options = ["--cifar", str(tmp_path / "small"), "--images", "4", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["data.py", *folders, *options, "--out", str(out)])
    benchmark.main()
    document = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == document
    assert document["hardware"]["cores"] >= 1 and document["versions"]["torch"]
    for found in (*document["photos"].values(), document["small_images_in_memory"]):
        first, *others = found["training"].values()
        assert first["ratio"] == {"median": 1, "min": 1, "max": 1} and others
        assert all(other["images_per_second"]["min"] > 0 for other in others)
    for found in document["photos"].values():
        assert found["evaluation_pixels"]["largest_difference"] == 0
    assert document["photos"]["500"]["training_pixels"]["decoded at 1/1"]["psnr"]["min"] > 45
    assert document["photos"]["2000"]["images"] == 1
