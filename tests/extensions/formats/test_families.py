"""Every family of ViTs is equal to its home or refused in one line; none loads and differs.

The cases are those of benchmarks/parity/families.py: models of timm and transformers at depth 1 or
2 with random values in every parameter.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.lib import family_cases
from benchmarks.lib.pages import ROOT, load
from benchmarks.parity import families
from vit.errors import UserError
from vit.extensions.formats import timm_families
from vit.extensions.formats.refusals import FAMILIES
from vit.models.config import ViTConfig
from vit.weights.pretrained import create_model, inspect_pretrained

pytest.importorskip("timm")
pytest.importorskip("transformers")

CHUNKS = 8
LAYOUTS = ("library", "bare, .safetensors")
# Arguments of timm's entries that tensors show, or that change nothing.
SHOWN_BY_TENSORS = set(
    "cls img_size patch_size embed_dim depth mlp_ratio init_values no_embed_class reg_tokens "
    "class_token fc_norm qkv_bias dynamic_img_size embed_layer pos_embed mlp_layer".split()
)


def described(**config: Any) -> Any:
    """The part of a file that holds config.json."""
    return SimpleNamespace(config=config, hints={}, path="FILE")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with torch.no_grad():
        yield


def committed() -> list[dict[str, Any]]:
    """Rows of the table that was measured last."""
    return load("results/families")["rows"]


def identity(model: str, arguments: dict[str, Any], layout: str) -> str:
    """A name for one file."""
    return f"{model} {json.dumps(arguments)} {layout}"  # tuples are written as lists


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_family_is_equal_or_refused_in_one_line(chunk: int) -> None:
    equal = {
        identity(row["model"], row["arguments"], row["layout"])
        for row in committed()
        if row["answer"] == "equal"
    }
    cases = [*family_cases.timm_cases(others=False), *family_cases.transformers_cases()]
    answers = set()
    for case in cases[chunk::CHUNKS]:
        for row in families.measure(case, layouts=LAYOUTS, moving=False):
            name = identity(row.model, row.arguments, row.layout)
            answers.add(row.answer)
            if row.answer == "refused":
                assert row.sentence and "\n" not in row.sentence, name
                assert name not in equal, f"{name} is refused now: {row.sentence}"
            elif row.answer == "assumed":  # bare, and built with arguments that no tensor shows
                assert case.unseen and row.layout != "library" and row.notes, name
            else:
                assert row.answer == "equal", (
                    f"{name}: {row.answer} {row.difference} {row.sentence}"
                )
                assert row.difference < 1e-5, name
    assert {"equal", "refused"} <= answers


def test_the_committed_table_has_no_model_that_loads_and_differs() -> None:
    """And the weights of each equal model are such that every part of it counts."""
    rows = committed()
    answers = Counter(row["answer"] for row in rows)
    assert answers.keys() == {"equal", "refused", "assumed"} and answers["equal"] > 150
    assert not [row for row in rows if row["answer"] == "assumed" and row["layout"] == "library"]
    moved = [row["least_moved"] for row in rows if row["least_moved"] is not None]
    assert len(moved) > 100 and min(moved) > families.MOVES
    assert (ROOT / "docs/families.md").read_text().count("| refused") > 100


def one_case(model: str) -> Any:
    return next(case for case in family_cases.timm_cases() if case.model == model)


def test_another_number_of_heads_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES["sizes"], "so400m", (1152, 18))
    model = "vit_base_patch16_siglip_gap_224"
    case = next(case for case in family_cases.timm_cases() if case.model == model)
    monkeypatch.setitem(FAMILIES["sizes"], "base", (768, 6))
    [row] = families.measure(case, layouts=LAYOUTS[:1], moving=False)
    assert row.answer == "different"


def test_the_list_has_the_arguments_that_timm_builds_with() -> None:
    accepted = 0
    for name in family_cases.timm_names():
        arguments = dict(family_cases.timm_arguments(name))
        if arguments["cls"] == "ResNetV2":
            assert timm_families.is_bit(name) == name.endswith("_bit")
            continue
        known = timm_families.family(name)
        if known is None:
            continue
        accepted += 1
        if arguments["cls"] == "Eva":
            check_eva(name, known, arguments)
            continue
        assert arguments["cls"] in ("VisionTransformer", "VisionTransformerDistilled"), name
        assert (known.width, known.num_heads) == (
            arguments.pop("embed_dim"),
            arguments.pop("num_heads"),
        ), name
        assert known.pool == arguments.pop("global_pool", "token"), name
        gated = "mlp_layer" in arguments
        activation = arguments.pop("act_layer", "gelu")
        assert activation == ("SiLU" if gated else known.activation), name
        assert set(arguments) <= SHOWN_BY_TENSORS, name
        file = described(architecture=name)
        assert timm_families.has_qkv_biases(file, known) == arguments.get("qkv_bias", True), name
    assert accepted > 100


def check_eva(name: str, known: Any, arguments: dict[str, Any]) -> None:
    """Heads, pooling, biases and rotary positions are those of timm's entry."""
    file = described(architecture=name)
    assert (known.width, known.num_heads) == (arguments["embed_dim"], arguments["num_heads"]), name
    assert known.pool == arguments.get("global_pool", "avg"), name
    assert timm_families.has_qkv_biases(file, known) == arguments.get("qkv_bias", True), name
    full = described(architecture=name, model_args=arguments)
    rotary = timm_families.rotary_of(file, known)
    assert timm_families.rotary_of(full, known) == rotary is not None, name
    assert "eps=1e-05" in str(arguments["norm_layer"])
    assert timm_families.epsilon(file, rotary) == 1e-5
    for argument in SHOWN_BY_TENSORS | {"norm_layer"}:
        arguments.pop(argument, None)
    shapes = {"cls_token": (1, 1, known.width), "patch_embed.proj.weight": (known.width, 3, 16, 16)}
    timm_families.check_arguments(full, known, shapes, rotary)


def test_names_of_older_versions_are_understood() -> None:
    from timm.models import _registry

    for old, new in _registry._deprecated_models.items():
        stem = new.split(".")[0]
        if timm_families.family(stem) is not None or timm_families.is_bit(stem):
            assert timm_families.architecture_of(described(architecture=old)) == stem


def saved(model: str, folder: Path, layout: str) -> Path:
    case = one_case(model)
    return families.saved(case, families.scatter(case.build()), layout, folder)


def test_a_description_without_arguments_is_decided_by_the_architecture(tmp_path: Path) -> None:
    """As older versions of timm wrote it, with a tag in the name."""
    path = saved("vit_so400m_patch14_siglip_gap_224", tmp_path, "library")
    description = {"architecture": "vit_so400m_patch14_siglip_gap_224.webli"}
    (tmp_path / "config.json").write_text(json.dumps(description))
    config = inspect_pretrained(path).config
    assert isinstance(config, ViTConfig) and config.num_heads == 16
    description = {"architecture": "vit_so400m_patch16_siglip_gap_256.v2_webli"}
    (tmp_path / "config.json").write_text(json.dumps(description))
    config = inspect_pretrained(path).config
    assert isinstance(config, ViTConfig) and config.activation == "gelu_tanh"


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = saved("deit_tiny_patch16_224", tmp_path, "library")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_next_patch16_224"}))
    with pytest.raises(UserError, match="vit_next_patch16_224 is no model that is known"):
        create_model(pretrained=path)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("act_layer", "quick_gelu"),
        ("global_pool", "max"),
        ("norm_layer", "rmsnorm"),
        ("attn_layer", "diff"),
        ("pool_include_prefix", True),
        ("something_new", 3),
    ],
)
def test_an_argument_that_changes_logits_is_refused_by_name(
    argument: str, value: object, tmp_path: Path
) -> None:
    path = saved("deit_tiny_patch16_224", tmp_path, "library")
    arguments = {"global_pool": "avg", argument: value}
    description = {"architecture": "deit_tiny_patch16_224", "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=f"{argument}={value!r}"):
        create_model(pretrained=path)
