"""`vit fit -c probe`: a head fitted to frozen features, as a run like any other."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vit as package
from tests.command import Vit, saved
from vit.extensions.formats.convert import convert
from vit.weights.native import save_native

PARTS = ("weight", "bias")
OPTIONS = ("--data.batch_size=8", "--data.loading.num_workers=0", "--trainer.precision=32-true")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A model directory of random weights without a head."""
    return saved(tmp_path / "encoder", classes=None)


def test_the_head_is_fitted_and_the_rest_is_as_it_was(
    vit: Vit, photos: Path, encoder: Path
) -> None:
    done = vit("fit", "-c", "probe", "--data.root", photos, "--model.pretrained", encoder, *OPTIONS)
    assert done.status == 0, done.err
    assert "--pretrained 'runs/my photos-probe'" in done.out  # what comes next
    run = Path("runs/my photos-probe")
    before, after = (load_file(p / "model.safetensors") for p in (encoder, run / "model"))
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert set(after) - set(before) == {"head.weight", "head.bias"}
    steps = [
        json.loads((p / "config.json").read_text())["preprocess"] for p in (run / "model", encoder)
    ]
    assert steps[0] == steps[1] and after["head.weight"].any()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 0
    assert summary["trained_parameters"] == sum(after[f"head.{n}"].numel() for n in PARTS)
    # The features have learned these images, and a score of them would be too good.
    assert "left out of the fit" in done.err
    again = vit("fit", "-c", "probe", "--data.root", photos, "--pretrained", run, *OPTIONS)
    assert "fitted to the features of" in again.err and "left out of" not in again.err, again.err


def test_a_probe_of_random_features_is_refused(vit: Vit, photos: Path) -> None:
    done = vit("fit", "-c", "probe", "--data.root", photos, "--data.image_size=16", *OPTIONS,
               "--model.pretrained=null")  # fmt: skip
    assert done.status == 2 and "give --model.pretrained WEIGHTS" in done.err
    assert not Path("runs").exists()


def several(photos: Path) -> Path:
    """A list of the photos with two labels each."""
    rows = [f"{p},{p.parent.name}|any" for p in sorted(photos.rglob("*.jpg"))]
    Path("several.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    return Path("several.csv")


def rare(photos: Path) -> Path:
    """A list of the photos with one in five of the class red."""
    rows = [(path, path.parent.name) for path in sorted(photos.rglob("*.jpg"))]
    reds = [row for row in rows if row[1] == "red"]
    listed = [row for row in rows if row not in reds] + reds[::5]
    lines = ["path,label", *(f"{path},{label}" for path, label in listed)]
    Path("rare.csv").write_text("\n".join(lines) + "\n")
    return Path("rare.csv")


def test_rare_classes_are_noted_and_weights_reach_the_fitted_head(
    vit: Vit, photos: Path, encoder: Path
) -> None:
    command = ("fit", "-c", "probe", "--data.root", rare(photos), "--model.pretrained", encoder)
    plain = vit(*command, *OPTIONS, "--run_dir=plain")
    weighted = vit(*command, *OPTIONS, "--run_dir=w", "--model.loss.class_weights=balanced")
    drawn = vit(*command, *OPTIONS, "--run_dir=drawn", "--data.sampling.balanced=true")
    note = "--data.sampling.balanced true lets rare classes count as much"
    assert note in plain.err and note not in weighted.err + drawn.err
    heads = [
        load_file(f"{run}/model/model.safetensors")["head.bias"] for run in ("plain", "w", "drawn")
    ]
    assert torch.equal(heads[1], heads[2])
    metrics = json.loads(Path("plain/summary.json").read_text())["metrics"]
    constant, recall = metrics["test/constant_acc1"], metrics["test/recall"]
    last = f"mean recall of the classes {recall:.4f}; always the most frequent one {constant:.4f}"
    assert last in plain.out and 0 < constant < 1
    names = json.loads(Path("plain/model/config.json").read_text())["classes"]
    red = names.index("red")
    assert heads[1][red] - heads[1].mean() > heads[0][red] - heads[0].mean()


def test_thresholds_come_from_images_left_out_of_the_fit_or_from_val(
    vit: Vit, photos: Path, encoder: Path
) -> None:
    data = ("--data.root", several(photos), "--model.pretrained", encoder, *OPTIONS)
    for name, options in {
        "left-out": ("-c", "probe", "--data.splits.val_fraction=0"),
        "val": ("-c", "probe", "--data.splits.val_fraction=0.3"),
        "short": ("-c", "finetune", "--data.splits.val_fraction=0.3", "--trainer.max_steps=1"),
        "even": ("-c", "finetune", "--data.splits.val_fraction=0", "--trainer.max_steps=1"),
    }.items():
        done = vit("fit", *options, *data, f"--run_dir={name}")
        assert done.status == 0, done.err
        extra = json.loads(Path(name, "model", "config.json").read_text())["extra"]
        assert ("thresholds" in extra) == (name != "even")
        assert ("thresholds: 0.5 for every class" in done.err) == (name == "even")
        assert name == "even" or set(extra["thresholds"]) != {0.5}


def test_a_class_more_keeps_the_rows_of_the_others(vit: Vit, photos: Path, encoder: Path) -> None:
    (photos / "red").rename("red")
    first = vit("fit", "-c", "probe", "--data.root", photos, "--model.pretrained", encoder,
                *OPTIONS, "--run_dir=two")  # fmt: skip
    for name in ("blue", "grün"):
        for path in sorted((photos / name).iterdir())[2:]:
            path.unlink()
    Path("red").rename(photos / "red")
    data = ("--data.root", photos, "--model.pretrained=two", *OPTIONS)
    runs = {"probe": (), "lora": ("--trainer.max_steps=1",)}
    told = [vit("fit", "-c", r, *data, f"--run_dir={r}", *more) for r, more in runs.items()]
    assert [done.status for done in (first, *told)] == [0, 0, 0], told
    for done in told:
        assert "head: rows of 2 classes kept by name; new: 'red'" in done.err
        assert "head: the rows of 2 known classes stay" in done.err
    old, new = (load_file(f"{run}/model/model.safetensors") for run in ("two", "probe"))
    names = json.loads(Path("probe/model/config.json").read_text())["classes"]
    assert names == ["blue", "grün", "red"] and new["head.weight"][2].any()
    for name in ("head.weight", "head.bias"):
        torch.testing.assert_close(new[name][:2], old[name])
    done = vit("fit", "-c", "probe", *data, "--data.root", several(photos), "--run_dir=several")
    assert done.status == 0 and "new: 'any', 'red'" in done.err, done.err


def test_a_class_with_one_image_tells_no_temperature(vit: Vit, photos: Path, encoder: Path) -> None:
    """The head that is fitted without it does not know its class."""
    root = Path("few")
    for path in sorted(path for path in photos.rglob("*") if path.is_file()):
        (place := root / path.parent.name / path.name).parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    lone = min(root.iterdir())
    for path in sorted(lone.iterdir())[1:]:
        path.unlink()
    data = ("--data.root", root, "--model.pretrained", encoder, *OPTIONS)
    cut = "--data.splits.test_fraction=0"
    done = vit("fit", "-c", "probe", *data, cut, "--final_split=none")
    assert done.status == 0 and "no images to measure on" in done.err, done.err
    assert "\ntemperature " not in done.err


def test_a_head_of_other_classes_is_fitted_whatever_their_number(vit: Vit, photos: Path) -> None:
    """The data has three classes, too; Hugging Face's LABEL_0, LABEL_1 ... are no names."""
    model = package.create_model(pretrained=saved(Path("named"), ["a", "b", "c"]))
    save_native(Path("three"), model, classes=None, preprocess=None, extra={})
    convert(Path("three"), "hub", "huggingface")
    data = ("--data.root", photos, "--model.pretrained=hub", *OPTIONS)
    data += ("--data.image_size=16", "--model.architecture.num_heads=2")
    steps = "--trainer.max_steps=1"
    runs = {"probe": (), "finetune": (steps,), "lora": (steps, "--model.lora=2")}
    for recipe, options in runs.items():
        done = vit("fit", "-c", recipe, *data, *options, f"--run_dir={recipe}")
        assert done.status == 0, done.err
        assert "head: zeros for 3 classes, the file does not name its classes" in done.err
        assert "head: fitted to the features of" in done.err
        # The weights name none of the classes, so a probe may measure on its own images.
        assert ("\ntemperature " in done.err) == (recipe == "probe")
    kept = vit("fit", "-c", "finetune", *data, steps, "--model.head=keep", "--run_dir=kept")
    assert kept.status == 0, kept.err
    assert "head: rows of 3 classes kept by number" in kept.err and "fitted to" not in kept.err


@pytest.mark.parametrize(
    "option",
    [
        *("--lr=1", "--steps=1", "--data.augment.flip=false", "--model.loss.function=math.fsum"),
        *("--patience=3", "--model.lora=4", "--model.learning.layer_decay=0.5"),
        *("--data.pseudo=vit.Pseudo", "--data.sampling.repeats=2"),
    ],
)
@pytest.mark.parametrize("recipe", ["probe", "names"])
def test_options_of_steps_are_refused(recipe: str, option: str, vit: Vit, photos: Path) -> None:
    done = vit("fit", "-c", recipe, "--data.root", photos, option)
    assert done.status == 2 and f"{option.partition('=')[0]} has no effect" in done.err
