"""`vit fit -c names`: the classes' names and their photos make a head."""

import json
from pathlib import Path

import pytest
import torch

import vit as package
from tests.command import Vit, coloured, vit
from vit.extensions.adaptation.ridge import ridge_towards
from vit.extensions.licences import rows

__all__ = ["vit"]

FIT = ("fit", "-c", "names", "--data", "photos", "--trainer.accelerator", "cpu")
FIT = (*FIT, "--data.loading.num_workers", "0", "--trainer.precision", "32-true")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from tests.extensions.text.repositories import hugging_face

    folder = tmp_path_factory.mktemp("models") / "clip"
    hugging_face(folder, "CLIPModel")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder


def test_a_run_starts_from_the_names_and_is_a_model(vit: Vit, model: Path) -> None:
    rows._note_once.cache_clear()
    coloured(Path("photos"))
    done = vit(*FIT, "--pretrained", model, "--run_dir", "run")
    assert done.status == 0, done.err
    assert "by leave-one-out" in done.err and "licence of the tokenizer clip: mit" in done.err
    values = json.loads(Path("run/model/config.json").read_text())
    assert values["classes"] == ["blue", "grün", "red"]
    assert [row["part"] for row in values["extra"]["licences"]] == ["weights", "tokenizer"]
    assert values["model"]["cosine"]["templates"] == ["a photo of {}."]
    pictures = sorted(map(str, Path("photos").rglob("*.jpg")))
    named = package.load(model, names=values["classes"])
    trained = package.load("run")
    torch.testing.assert_close(trained.features(pictures), named.features(pictures))
    again = vit("test", "run", "--trainer.accelerator", "cpu", "--json")
    assert again.status == 0 and json.loads(again.out)["test/acc1"] > 0.5
    assert vit("fit", "--resume", "run").status == 0


def test_the_head_is_the_ridge_of_the_training_images(vit: Vit, model: Path) -> None:
    coloured(Path("photos"))
    split = ("--data.splits.test_fraction", "0.0")
    done = vit(*FIT, *split, "--pretrained", model, "--run_dir", "run")
    assert done.status == 0, done.err
    pictures = sorted(Path("photos").rglob("*.jpg"))
    classes = ["blue", "grün", "red"]
    named = package.load(model, names=classes)
    labels = torch.tensor([classes.index(path.parent.name) for path in pictures])
    x = named.features(list(map(str, pictures))).double()
    expected = ridge_towards(x, labels, named.model.head.weight.detach().double())
    head = package.load("run").model.head
    torch.testing.assert_close(head.weight.double(), expected.weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(head.bias.double(), expected.bias, rtol=1e-3, atol=1e-3)


def test_groups_leave_no_image_out(vit: Vit, model: Path) -> None:
    """An image of a group tells of the others."""
    pictures = sorted(coloured(Path("photos")).rglob("*.jpg"))
    rows = [f"{path},{path.parent.name},{i % 6}" for i, path in enumerate(pictures)]
    Path("list.csv").write_text("\n".join(["path,label,patient", *rows]))
    group = ("--data", "list.csv", "--data.columns.group", "patient")
    done = vit(*FIT, *group, "--pretrained", model, "--run_dir", "run")
    assert done.status == 0, done.err
    assert "or groups)\n" in done.err and "left out of the fit" not in done.err
    assert "temperature" not in json.loads(Path("run/model/config.json").read_text())["extra"]


def test_what_names_cannot_be_given_to_is_refused(vit: Vit, model: Path) -> None:
    coloured(Path("photos"))
    without = vit(*FIT)
    assert without.status == 2 and "give --model.pretrained WEIGHTS" in without.err
    balanced = vit(*FIT, "--pretrained", model, "--data.sampling.balanced", "true")
    assert balanced.status == 2 and "weighs all images alike" in balanced.err
