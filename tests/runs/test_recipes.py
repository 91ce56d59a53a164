"""Shipped recipes: found by name, complete, as published, and every one builds."""

import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pytest import approx

import vit
from tests.command import Vit
from tests.training.published import Published
from tests.training.published_recipes import PUBLISHED
from tests.training.recipe_reading import build, devices, header, read, variant_options
from vit.extensions.compute.flops import counted
from vit.extensions.pretraining.targets import Colors, Pixels
from vit.recipes import list_recipes
from vit.runs.options import Options
from vit.weights.building import build_empty

RECIPES = list_recipes()

# Ours, without a source of numbers to hold them to.
OWN = {"quickstart", "cifar10", "finetune", "lora", "probe", "distill", "names"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures of each of three classes."""
    root = tmp_path_factory.mktemp("pictures")
    for name in "abc":
        (root / name).mkdir()
        for i in range(4):
            Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models are built at their full size, but on the meta device."""
    monkeypatch.setattr("vit.weights.pretrained.build_model", build_empty)
    yield


def test_the_promised_recipes_are_there() -> None:
    assert OWN | set(PUBLISHED) <= set(RECIPES)
    unchecked = set(RECIPES) - OWN - set(PUBLISHED)
    elsewhere = ("masked_patches", "cifar10", "pretrain/dino")
    assert all(any(word in name for word in elsewhere) for name in unchecked)


@pytest.mark.parametrize(
    "name", sorted(RECIPES.keys() - PUBLISHED.keys())
)  # the others build below
def test_a_recipe_parses_and_builds(name: str, folder: Path, no_weights: None) -> None:
    arguments = ["-c", name, "--data.root", str(folder), "--trainer.accelerator", "cpu"]
    arguments += ["--trainer.precision", "32-true", "--model.pretrained", "null"]
    if name == "lora":  # which needs pre-trained weights
        arguments += ["--model.adaptation", "null"]
    if name == "pretrain/dinov2_continue":  # the same
        arguments += ["--model.gram", "0"]
    built = build(arguments)
    assert built.model.preprocess == built.data.preprocess
    if built.model.labelled:
        assert built.model.num_classes == 3
        assert built.model.classes == ["a", "b", "c"]
    named = [{"params": [p], "names": [n]} for n, p in built.model.model.named_parameters()]
    assert built.model.optimizer(named).param_groups


def test_the_variants_of_masked_patches_are_the_papers_other_targets(
    folder: Path, no_weights: None
) -> None:
    name = "pretrain/masked_patches"
    variants = variant_options(name)
    targets = {"colors_4x4": Colors(4), "pixels": Pixels(normalised=False)}
    assert list(variants) == list(targets)
    for target, options in variants.items():
        arguments = ["-c", name, *options, "--data.root", str(folder)]
        built = build([*arguments, "--trainer.accelerator=cpu", "--trainer.precision=32-true"])
        assert built.model.target == targets[target]


CASES = [(name, variant) for name, variants in PUBLISHED.items() for variant in variants]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_recipe_is_what_is_published(
    name: str, variant: str, folder: Path, no_weights: None
) -> None:
    options = variant_options(name)[variant] if variant else []
    if "--data.dataset" in options:  # the images are those of the folder
        at = options.index("--data.dataset")
        options = options[:at] + options[at + 2 :]
    arguments = ["-c", name, *options, "--data.root", str(folder), "--trainer.precision=32-true"]
    recipe = read(build(arguments), devices(name))
    for field in Published.__dataclass_fields__:
        expected = getattr(PUBLISHED[name][variant], field)
        if isinstance(expected, float):
            rounded = field in ("first_lr", "last_lr")  # which recipes give as factors
            expected = approx(expected, rel=1e-4 if rounded else 1e-9, abs=0)
        assert getattr(recipe, field) == expected, field


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_variant_of_a_header_is_checked(name: str) -> None:
    assert set(variant_options(name)) == set(PUBLISHED[name]) - {""}


def test_the_three_of_equal_compute_are_within_two_percent(folder: Path) -> None:
    counts = []
    for kind in ("vit", "bit", "hybrid"):
        name = f"cifar10/equal_flops_{kind}"
        arguments = ["-c", name, "--data.root", str(folder), "--trainer.precision=32-true"]
        built = build(arguments)
        counts.append(counted(built.model.model, (32, 32)).flops / 2)
        config, data = built.config, built.data
        settings = config.model.optimizer, config.model.schedule, config.trainer
        images = data.batch_size, data.augment, data.sampling
        if kind == "vit":
            first = settings, images
        assert (settings, images) == first
    assert max(counts) < 1.02 * min(counts)
    assert 40e6 < min(counts) and max(counts) < 75e6


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_is(name: str) -> None:
    lines = header(name)
    assert len(lines[0]) > 20
    if name != "quickstart":
        for part in ("run:", "source:"):
            assert any(line.startswith(f"# {part}") for line in lines), part
    text = "\n".join(lines)
    assert "none committed" not in text and "not measured" not in text
    for file in re.findall(r"benchmarks/[\w./]+\w", text):
        assert (Path(__file__).parents[2] / file).is_file(), file


@pytest.mark.parametrize("name", ["quickstart", "finetune", "cifar10/bit", "cifar10/deit"])
def test_a_run_records_its_classes_by_public_names(name: str, folder: Path) -> None:
    words = ["--trainer.accelerator=cpu", "--trainer.precision=32-true", "--model.pretrained=null"]
    words += ["--data.root", str(folder)]
    text = Options(["-c", name, *words]).recorded_text()
    recorded = re.findall(r"class_path: (vit\.\S+)", text)
    named = re.findall(r"class_path: (vit\.\S+)", RECIPES[name].read_text())
    assert sorted(recorded) == sorted(named) != []
    assert {*recorded} <= {f"vit.{public}" for public in vit.__all__}


def test_classes_in_the_data_are_read_back_from_what_is_recorded(
    folder: Path, tmp_path: Path
) -> None:
    (answers := tmp_path / "answers").touch()
    words = ["--data.root", str(folder), "--trainer.precision=32-true", "--data.pseudo=vit.Pseudo"]
    words += ["--data.pseudo.root", os.path.relpath(folder), "--data.pseudo.hard=true"]
    words += ["--data.pseudo.answers", os.path.relpath(answers)]
    options = Options(["-c", "cifar10/deit", *words, "--data.augment.policy.magnitude=3"])
    (config := tmp_path / "recorded.yaml").write_text(options.recorded_text())
    again = Options(["-c", str(config), "--data.pseudo.hard=false"])
    policy = {"operations": 2, "magnitude": 3, "variant": "timm"}
    for each, hard in ((options, True), (again, False)):
        data = each.recorded()["data"]
        assert data["augment"]["policy"] == {"class_path": "vit.RandAugment", "init_args": policy}
        assert data["pseudo"]["class_path"] == "vit.Pseudo"
        places = {"root": str(folder), "answers": str(answers), "hard": hard}
        assert places.items() <= data["pseudo"]["init_args"].items()
        assert vars(each.data.augment.policy) == policy and vars(each.data.pseudo)["hard"] is hard


def test_a_recipe_can_be_printed(vit: Vit) -> None:
    assert vit("recipes", "quickstart").out == RECIPES["quickstart"].read_text()


@pytest.mark.slow
def test_the_wheel_holds_the_recipes_and_the_style_of_the_report(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).parents[2]
    wheel = next(WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"]))
    held = zipfile.ZipFile(wheel).namelist()
    assert all(f"vit/configs/{name}.yaml" in held for name in RECIPES)
    launch = [f"vit/configs/launch/{path.name}" for path in (root / "configs/launch").iterdir()]
    assert len(launch) == 3 and set(launch) <= set(held)
    files = [path for path in (root / "vit").rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert len(files) > 20 and {str(path.relative_to(root)) for path in files} <= set(held)
