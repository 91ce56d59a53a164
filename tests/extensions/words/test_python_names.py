"""Names of other packages in Python: each one works, or is answered by what to type."""

import inspect
from typing import Any

import pytest
import timm
import torch
from torch import nn

import vit
from vit.errors import UserError
from vit.extensions.words.python_names import Name, in_our_words, names
from vit.inference.answers import Prediction
from vit.preprocessing import Preprocess

OWNERS: dict[str, Any] = {
    "vit": vit,
    "Classifier": vit.Classifier(nn.Identity(), ["cat"], Preprocess(image_size=(8, 8))),
    "Prediction": Prediction(classes=["cat"], probabilities=[1.0]),
    "Run": vit.Run("run"),  # pyright: ignore[reportArgumentType]
}
FUNCTIONS: dict[str, Any] = {
    "Classifier.predict()": vit.Classifier.predict,
    "ImageClassifier.__init__()": vit.ImageClassifier.__init__,
    "create_model()": vit.create_model,
    "list_models()": vit.list_models,
    "load()": vit.load,
}
POSITIONAL: dict[str, tuple[Any, ...]] = {
    "create_model()": ("vit_ti16",),
    "Classifier.predict()": (OWNERS["Classifier"], []),
    "ImageClassifier.__init__()": (vit.ImageClassifier.__new__(vit.ImageClassifier),),
}
CONFIGURED = vit.ViTConfig.__dataclass_fields__
ATTRIBUTES = [(row, name) for row in names() for name in row.names.split("|") if row.is_attribute]
KEYWORDS = [(row, name) for row in names() for name in row.names.split("|") if not row.is_attribute]


@pytest.mark.parametrize(("row", "name"), ATTRIBUTES, ids=lambda x: getattr(x, "owner", x))
def test_an_attribute_that_is_missing_is_answered(row: Name, name: str) -> None:
    assert not row.same and not hasattr(OWNERS[row.owner], name)
    with pytest.raises(AttributeError, match=f"{row.owner} has no attribute '{name}': ") as error:
        getattr(OWNERS[row.owner], name)
    assert row.ours in str(error.value)


@pytest.mark.parametrize(("row", "name"), KEYWORDS, ids=lambda x: getattr(x, "owner", x))
def test_a_keyword_is_understood_or_answered(row: Name, name: str) -> None:
    call = FUNCTIONS[row.owner]
    parameters = inspect.signature(call).parameters
    known = {*parameters, *(CONFIGURED if row.owner == "create_model()" else ())}
    assert name not in known
    if row.same:
        assert row.ours in known
        assert in_our_words([row.owner, "engine", name]) == [row.owner, "engine", row.ours]
        return
    with pytest.raises(UserError, match=f"{name}=: ") as error:
        call(*POSITIONAL.get(row.owner, ()), **{name: 1})
    assert row.ours in str(error.value) and row.note in str(error.value)
    assert error.value.__context__ is None


def test_names_that_are_nobody_s_are_plain_errors() -> None:
    with pytest.raises(AttributeError, match=r"^vit has no attribute 'nothing'$"):
        vit.nothing  # noqa: B018 # pyright: ignore
    with pytest.raises(UserError, match="unknown model option 'nothing'"):
        vit.create_model("vit_ti16", nothing=1)
    with pytest.raises(TypeError, match="nothing"):
        vit.list_models(nothing=1)  # pyright: ignore[reportCallIssue]


def test_keywords_of_timm_build_the_model_of_timm() -> None:
    options: dict[str, Any] = {"img_size": 32, "in_chans": 1, "num_classes": 3, "num_heads": 2}
    options |= {"init_values": 1e-4, "drop_path_rate": 0.2}
    theirs = timm.create_model("vit_tiny_patch16_224", embed_dim=96, **options)
    ours = vit.create_model("vit_ti16", width=96, mlp_dim=4 * 96, **options)
    assert {n: p.shape for n, p in ours.named_parameters()} == {
        n: p.shape for n, p in theirs.named_parameters()
    }
    assert ours.config.drop_path == pytest.approx(theirs.blocks[-1].drop_path1.drop_prob)
    gamma = "blocks.0.ls1.gamma"
    torch.testing.assert_close(ours.get_parameter(gamma), theirs.get_parameter(gamma))


def test_keywords_of_others_choose_the_same_answers() -> None:
    model = vit.create_model("vit_ti16", num_classes=3, image_size=16)
    classifier = vit.Classifier(model, ["a", "b", "c"], Preprocess(image_size=(16, 16)))
    images = torch.randint(0, 255, (2, 3, 16, 16), dtype=torch.uint8)
    same: Any = classifier.predict
    assert same(source=images, topk=2) == classifier.predict(images, top=2)
    [answer] = classifier(images[:1])
    assert (answer["label"], answer["probability"]) == answer.top[0]
    assert answer["unknown"] is None is answer.unknown


def test_a_name_that_is_imported_is_answered_too() -> None:
    with pytest.raises(ImportError, match=r"no attribute 'pipeline': type vit.load\(NAME\)"):
        exec("from vit import load, pipeline")
    assert not hasattr(vit, "pipeline") and getattr(vit, "pipeline", 1) == 1
    scope: dict[str, Any] = {}
    exec("from vit import signals, load\nfrom vit import *", scope)
    assert scope["load"] is vit.load and scope["knn"] is vit.knn


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (vit.create_model, {"name": "vit_ti16", "image_size": 64, "img_size": 32}),
        (vit.create_model, {"name": "vit_s16", "model_name": "vit_ti16"}),
        (vit.load, {"path": "a", "run": "b"}),
    ],
)
def test_two_names_of_one_option_are_refused(call: Any, names: dict[str, Any]) -> None:
    one, other = [*names][-2:]
    with pytest.raises(UserError, match=f"{one} and {other} are one option; give one"):
        call(**names)
