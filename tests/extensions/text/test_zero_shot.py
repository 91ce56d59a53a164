"""Classes by their names: rows of texts are a head that is saved, converted and exported."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

import vit as package
from tests.command import Vit, vit
from tests.extensions.text.repositories import SIDE, hugging_face
from vit.errors import UserError
from vit.extensions.formats.convert import convert
from vit.extensions.licences import rows
from vit.extensions.text.reading import Texts
from vit.extensions.text.tower import TextConfig, TextTower
from vit.extensions.text.zero_shot import as_names, as_templates, text_rows
from vit.inference.classifier import Classifier
from vit.models.config import ViTConfig

__all__ = ["vit"]

NAMES = ["cat", "dog", "a red car"]
TEMPLATES = ["a photo of {}", "a drawing of a {}."]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> folder of a whole model with its tokenizer."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models")
    for kind in ("CLIPModel", "SiglipModel"):
        hugging_face(folder / kind, kind)
    card = "---\nlicense: other\nlicense_name: apple-amlr\nlicense_link: LICENSE\n---\n# A model"
    (folder / "CLIPModel" / "README.md").write_text(card)
    return {kind: folder / kind for kind in ("CLIPModel", "SiglipModel")}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


def numbers(classifier: Classifier, pictures: list[Path]) -> torch.Tensor:
    return classifier.probabilities(pictures)


def test_rows_are_means_of_directions_over_the_templates() -> None:
    torch.manual_seed(0)
    layers = ViTConfig(width=16, depth=1, mlp_dim=24, num_heads=2, num_classes=6)
    tower = TextTower(TextConfig(layers=layers, vocabulary=32, context=8, end=None)).eval()
    torch.nn.init.normal_(tower.pos_embed)

    def tokens(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[ord(c) % 32 for c in f"{text:>8}"[-8:]] for text in texts])

    rows = text_rows(Texts(tower, 1.0, None, None), tokens, ["cat", "dog"], TEMPLATES)  # type: ignore
    for row, name in zip(rows, ("cat", "dog"), strict=True):
        with torch.no_grad():
            one, two = tower(tokens([each.replace("{}", name) for each in TEMPLATES]))
        mean = (one / one.norm() + two / two.norm()) / 2
        torch.testing.assert_close(row, mean / mean.norm())


@pytest.mark.parametrize("kind", ["CLIPModel", "SiglipModel"])
def test_names_answer_as_transformers_and_survive_saving(
    kind: str, repositories: dict[str, Path], pictures: list[Path], tmp_path: Path
) -> None:
    import transformers

    classifier = package.load(repositories[kind], names=NAMES, templates=TEMPLATES)
    assert classifier.classes == NAMES and classifier.multilabel == (kind == "SiglipModel")
    expected = numbers(classifier, pictures)
    peer = getattr(transformers, kind).from_pretrained(repositories[kind]).eval()
    pixels = torch.stack([classifier.preprocess(Image.open(path)) for path in pictures])
    with torch.no_grad():
        embedding = peer.get_image_features(classifier.preprocess.normalize(pixels)).pooler_output
    features = classifier.features(list(map(str, pictures)))
    torch.testing.assert_close(features, F.normalize(embedding, dim=-1), rtol=0, atol=2e-6)
    package.save(classifier, tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "again", "native")
    for folder in ("saved", "again"):
        loaded = package.load(tmp_path / folder)
        assert loaded.classes == NAMES and loaded.multilabel == classifier.multilabel
        assert torch.equal(numbers(loaded, pictures), expected)


def test_a_converted_model_says_its_licences_and_templates(
    repositories: dict[str, Path], pictures: list[Path], vit: Vit
) -> None:
    names = ("--names", ",".join(NAMES))
    done = vit("convert", repositories["CLIPModel"], "named", "--to", "native", *names)
    assert done.status == 0, done.err
    values = json.loads(Path("named/config.json").read_text())
    assert values["classes"] == NAMES and values["model"]["num_classes"] == 3
    assert values["model"]["cosine"] == {"projection": 20, "templates": ["a photo of {}."]}
    licence = {"source": "CLIPModel", "licence": "apple-amlr", "link": "LICENSE"}
    parts = [{"part": part, **licence} for part in ("weights", "tokenizer")]
    assert values["extra"]["licences"] == parts
    first = vit("classify", repositories["CLIPModel"], pictures[0], *names, "--json")
    second = vit("classify", "named", pictures[0], "--json")
    assert first.status == second.status == 0, first.err
    (one,), (two,) = (
        [{each["class"]: each["probability"] for each in row["top"]} for row in json.loads(out)]
        for out in (first.out, second.out)
    )
    assert one == pytest.approx(two, abs=1e-5) and [*one] == [*two]


def test_licences_are_printed_once(
    repositories: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows._note_once.cache_clear()
    for _ in range(2):
        package.load(repositories["SiglipModel"], names=NAMES)
        package.load(repositories["CLIPModel"], names=NAMES)
    printed = capsys.readouterr().err
    gemma = "gemma, WITH TERMS OF ITS OWN, https://ai.google.dev/gemma/terms"
    assert printed.count("note: licence of the ") == 3
    assert printed.count(f"licence of the tokenizer SiglipModel: {gemma}") == 1
    own = "apple-amlr, WITH TERMS OF ITS OWN, LICENSE"
    for part in ("weights", "tokenizer"):
        assert f"licence of the {part} CLIPModel: {own}" in printed


@pytest.mark.parametrize(
    ("kind", "suffix"), [("CLIPModel", "onnx"), ("SiglipModel", "xml"), ("CLIPModel", "pt2")]
)
def test_a_named_model_is_exported_with_proof(
    kind: str, suffix: str, repositories: dict[str, Path], pictures: list[Path], tmp_path: Path
) -> None:
    classifier = package.load(repositories[kind], names=NAMES)
    result = package.export(classifier, tmp_path / f"m.{suffix}")
    assert result.proof.passed and result.proof.agreeing == 20
    if suffix != "pt2":
        again = package.load(tmp_path / f"m.{suffix}")
        torch.testing.assert_close(
            numbers(again, pictures), numbers(classifier, pictures), rtol=0, atol=1e-5
        )


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "coverage": (("--names", "cat,dog", "--coverage", "0.9"), "coverage=0.9 needs held-out images"),
    "unknown": (("--names", "cat,dog", "--unknown", "0.9"), "unknown=0.9 needs held-out images"),
    "one": (("--names", "cat"), "names='cat' are not two names or more"),
    "twice": (("--names", "cat,dog,cat"), "classes has the name cat twice"),
    "nothing": (("--names", "cat,,dog"), "are not two names or more"),
    "case": (("--names", "cat,dog,Cat"), "'cat' and 'Cat' have the same tokens"),
    "accents": (("--names", "café,cafe\u0301"), "have the same tokens: leave one of them out"),
    "cut": (("--names", f"{'a ' * 30}cat,{'a ' * 30}dog"), "have the same tokens"),
    "template": (("--names", "cat,dog", "--templates", "a photo"), "has not one {} for the name"),
    "alone": (("--templates", "a {}"), "templates go with names"),
    "none": ((), "is a projection, its outputs are numbers and no classes; give names="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_one_line(
    case: str, repositories: dict[str, Path], pictures: list[Path], vit: Vit
) -> None:
    options, message = REFUSED[case]
    done = vit("classify", repositories["CLIPModel"], pictures[0], *options)
    last = done.err.splitlines()[-1]
    assert done.status == 2 and last.startswith("vit: ") and message in last and not done.out


def test_a_model_without_texts_is_refused(repositories: dict[str, Path], tmp_path: Path) -> None:
    import transformers

    peer = transformers.CLIPVisionModel.from_pretrained(repositories["CLIPModel"])
    peer.save_pretrained(tmp_path / "image")
    with pytest.raises(UserError, match="has no text tower that is read here"):
        package.load(tmp_path / "image", names=NAMES)
    package.save(package.load(repositories["CLIPModel"], names=NAMES), tmp_path / "named")
    with pytest.raises(UserError, match="has no text tower that is read here"):
        package.load(tmp_path / "named", names=NAMES)


def damage(folder: Path, name: str, values: dict[str, Any]) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values))


DAMAGED: dict[str, tuple[str, dict[str, Any], str]] = {
    "part": (
        "config.json",
        {"text_config": [1]},
        "text_config of the config.json .* not an object",
    ),
    "kind": ("config.json", {"model_type": "altclip"}, "model_type='altclip' .* not one of clip"),
    "end": ("config.json", {"text_config": {"eos_token_id": [2]}}, r"eos_token_id=\[2\] of its"),
    "heads": ("config.json", {"text_config": {"num_attention_heads": 5}}, "num_heads=5"),
    "pad": ("tokenizer_config.json", {"pad_token": 3}, "names no pad_token"),
    "side": ("tokenizer_config.json", {"padding_side": "up"}, "padding_side='up'"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_descriptions_are_refused(
    case: str, repositories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(repositories["CLIPModel"], tmp_path / "clip")
    name, values, message = DAMAGED[case]
    damage(tmp_path / "clip", name, values)
    with pytest.raises(UserError, match=message):
        package.load(tmp_path / "clip", names=NAMES)


def test_names_and_templates_are_lists_or_texts() -> None:
    assert as_names("cat, dog , a red car") == as_names(NAMES) == NAMES
    assert as_names(["salt, pepper", "oil"]) == ["salt, pepper", "oil"]
    assert len(as_templates("imagenet")) == 80 and as_templates("imagenet")[0].endswith(" a {}.")
    assert as_templates(TEMPLATES) == TEMPLATES and as_templates("the {}") == ["the {}"]
    with pytest.raises(UserError, match=r"has not one \{\} for the name"):
        as_templates(["{} and {}"])
    wrong: list[Any] = [[1, 2], b"cat,dog", 5, [None, "a"], []]
    for values in wrong:
        with pytest.raises(UserError, match="is not a list of texts"):
            as_names(values)
    with pytest.raises(UserError, match="is not a list of texts"):
        as_templates(wrong[0])


def test_a_siglip_without_its_bias_is_refused(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(repositories["SiglipModel"], tmp_path / "siglip")
    file = tmp_path / "siglip" / "model.safetensors"
    tensors = load_file(file)
    del tensors["logit_bias"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match="has no logit_bias, which a SigLIP has"):
        package.load(tmp_path / "siglip", names=NAMES)


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"projection": -1}, "is not {'projection': WIDTH or 0"),
    "field": ({"projection": 4, "scale": 2}, "is not {'projection': WIDTH or 0"),
    "licence": ({"projection": 4, "licences": {"data": "MIT"}}, "is not {'projection': WIDTH or 0"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_wrong_head_is_refused(case: str) -> None:
    values, message = CONFIGS[case]
    with pytest.raises(UserError, match=message):
        package.create_model("vit_ti16", num_classes=3, image_size=SIDE, cosine=values)


def test_a_head_of_directions_takes_classes_and_none() -> None:
    """As any other head: with other classes, and as a backbone of unit features."""
    model = package.create_model(
        "vit_ti16", num_classes=3, image_size=SIDE, cosine={"projection": 8}
    )
    images = torch.randn(2, 3, SIDE, SIDE)
    assert model.head.weight.shape == (3, 8) and model.num_features == 8
    model.reset_classifier(5)
    assert model(images).shape == (2, 5)
    model.reset_classifier(0)
    torch.testing.assert_close(model.eval()(images).norm(dim=1), torch.ones(2))
