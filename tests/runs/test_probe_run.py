"""`vit fit -c probe`: a head fitted to frozen features, as a run like any other."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vit as package
from tests.command import Vit
from vit.checkpoints.native import save_native
from vit.preprocessing import Preprocess

ARCHITECTURE = {"patch_size": 8, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}
OPTIONS = ("--data.batch_size=8", "--data.loading.num_workers=0", "--trainer.precision=32-true")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A model directory of random weights without a head."""
    torch.manual_seed(0)
    model = package.create_model("vit_ti16", num_classes=0, image_size=16, **ARCHITECTURE)
    folder = tmp_path / "encoder"
    preprocess = Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict()
    save_native(folder, model, classes=None, preprocess=preprocess, extra={})
    return folder


def test_the_head_is_fitted_and_the_rest_is_as_it_was(
    vit: Vit, photos: Path, encoder: Path
) -> None:
    done = vit("fit", "-c", "probe", "--data.root", photos, "--model.pretrained", encoder, *OPTIONS)
    assert done.status == 0, done.err
    assert "--model.pretrained 'runs/my photos'" in done.out  # what comes next
    run = Path("runs/my photos")
    before, after = (load_file(p / "model.safetensors") for p in (encoder, run / "model"))
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert set(after) - set(before) == {"head.weight", "head.bias"}

    assert (
        after["head.weight"].any() and json.loads((run / "summary.json").read_text())["steps"] == 0
    )


def test_a_probe_is_scored_converted_and_fine_tuned_like_any_run(
    vit: Vit, photos: Path, encoder: Path
) -> None:
    pretrained = ("--model.pretrained", encoder)
    vit("fit", "-c", "probe", "--data.root", photos, *pretrained, *OPTIONS, "--run_dir=run")
    summary = json.loads(Path("run/summary.json").read_text())
    assert Path("run/report.html").is_file()
    again = json.loads(vit("test", "run", "--json").out)
    assert again["test/acc1"] == summary["metrics"]["test/acc1"]
    named = vit("classify", "run", photos / "red" / "00.jpg", "--json")
    assert named.status == 0 and "grün" in named.out
    assert vit("convert", "run", "timm", "--to", "timm").status == 0
    tuned = vit(
        "fit", "-c", "finetune", "--data.root", photos, "--model.pretrained", "run", *OPTIONS,
        "--trainer.max_steps=2",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err


def test_a_probe_of_random_features_is_refused(vit: Vit, photos: Path) -> None:
    done = vit("fit", "-c", "probe", "--data.root", photos, "--data.image_size=16", *OPTIONS,
               "--model.pretrained=null")  # fmt: skip
    assert done.status == 2 and "give --model.pretrained WEIGHTS" in done.err
    assert not Path("runs").exists()
