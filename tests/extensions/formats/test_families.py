"""Every family of ViTs is equal to its home or refused in one line; none loads and differs.

The cases are those of benchmarks/parity/families.py: models of timm and transformers with random
values in every parameter; timm's have one layer here, and the wide ones narrow MLPs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.lib import family_cases
from benchmarks.lib.pages import ROOT, load
from benchmarks.parity import families, timm_weights
from vit.errors import UserError
from vit.extensions.formats import timm_families
from vit.extensions.formats.refusals import FAMILIES
from vit.weights.pretrained import create_model, inspect_pretrained

pytest.importorskip("timm")
pytest.importorskip("transformers")

CHUNKS = 6
LAYOUTS = ("library", "bare, .safetensors")
# Arguments of timm's entries that tensors show, or that change nothing.
SHOWN_BY_TENSORS = set(
    "cls img_size patch_size embed_dim depth mlp_ratio init_values no_embed_class reg_tokens "
    "class_token fc_norm qkv_bias dynamic_img_size embed_layer pos_embed mlp_layer pre_norm".split()
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


PLAIN = {"Eva", "VisionTransformer", "VisionTransformerDistilled"}


def resizable(name: str) -> bool:
    """Whether it is a wide model of timm's that takes images of any size, if it is asked to."""
    arguments = family_cases.timm_arguments(name)
    wide = (arguments.get("embed_dim") or 384) >= 400
    return wide and arguments["cls"] in PLAIN and "embed_layer" not in arguments


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of one layer, whose weights are drawn once."""
    import timm

    create, load = timm.create_model, families._loaded

    def shallow(name: str, **options: Any) -> Any:
        if not options.get("depth"):
            return create(name, **options)
        options["depth"] = 1
        if resizable(name):
            options["dynamic_img_size"] = True
            arguments = family_cases.timm_arguments(name)
            if arguments["cls"] != "Eva" and "mlp_layer" not in arguments:
                options.setdefault("mlp_ratio", 1)
        return create(name, **options)

    def loaded(*args: Any) -> Any:
        with families.NoInit():
            return load(*args)

    monkeypatch.setattr(timm, "create_model", shallow)
    monkeypatch.setattr(families, "_loaded", loaded)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_family_is_equal_or_refused_in_one_line(
    chunk: int, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {
        identity(row["model"], row["arguments"], row["layout"]): row["answer"]
        for row in committed()
    }
    scatter, answers = families.scatter, set()
    cases = [*family_cases.timm_cases(others=False), *family_cases.transformers_cases()]
    for case in cases[chunk::CHUNKS]:
        names = [identity(case.model, case.shown, layout) for layout in LAYOUTS]
        refused = all(before.get(name) == "refused" for name in names)  # whatever its weights are
        monkeypatch.setattr(families, "scatter", torch.nn.Module.eval if refused else scatter)
        if case.library == "timm" and resizable(case.model):
            case = replace(
                case, size=lambda peer: tuple(4 * p for p in peer.patch_embed.patch_size)
            )
        for name, row in zip(names, families.measure(case, LAYOUTS, moving=False), strict=True):
            answers.add(row.answer)
            if row.answer == "refused":
                assert row.sentence and "\n" not in row.sentence, name
                assert before.get(name) != "equal", f"{name} is refused now: {row.sentence}"
            elif row.answer == "assumed":  # bare, and built with arguments that no tensor shows
                assert case.unseen and row.layout != "library" and row.notes, name
            else:
                assert row.answer == "equal" and row.difference < 1e-5, (
                    f"{name}: {row.answer} {row.difference} {row.sentence}"
                )
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


def test_the_page_counts_timms_weights_by_family() -> None:
    document = load("results/timm_weights")
    page = (ROOT / "docs/families.md").read_text()
    assert timm_weights.text(document) in page
    for family, count in (("CLIP", 87), ("Perception Encoder", 14), ("EVA", 31)):
        assert f"| {family} | {count} | {count} | 0 |" in page
    assert len(document["weights"]) == 448


def one_case(model: str) -> Any:
    return next(case for case in family_cases.timm_cases() if case.model == model)


def test_another_number_of_heads_would_be_found(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES["sizes"], "base", (768, 6))
    case = one_case("vit_base_patch16_siglip_gap_224")
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
        if name.startswith("vit_pe_"):
            check_perception(name, known, arguments)
            continue
        if timm_families.is_eva(known):
            check_eva02(name, known, arguments)
            continue
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
        eps = float(re.search("eps=(.*)[)]", arguments.pop("norm_layer", "(eps=1e-6)"))[1])
        assert set(arguments) <= SHOWN_BY_TENSORS, name
        file = described(architecture=name)
        assert timm_families.epsilon(file, known, None) == eps, name
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
    assert timm_families.epsilon(file, known, rotary) == 1e-5
    for argument in SHOWN_BY_TENSORS | {"norm_layer"}:
        arguments.pop(argument, None)
    shapes = {"cls_token": (1, 1, known.width), "patch_embed.proj.weight": (known.width, 3, 16, 16)}
    timm_families.check_arguments(full, known, shapes, rotary)


def check_perception(name: str, known: Any, arguments: dict[str, Any]) -> None:
    """Heads, pooling, and what the field `tower` says are those of timm's entry."""
    assert (known.width, known.num_heads) == (arguments["embed_dim"], arguments["num_heads"]), name
    assert known.pool == arguments.get("global_pool", "avg"), name
    assert "eps=1e-05" in arguments.pop("norm_layer")
    file = described(architecture=name)
    assert timm_families.epsilon(file, known, None) == 1e-5
    width = known.width
    shapes = {"cls_token": (1, 1, width), "attn_pool.mlp.fc1.weight": (4 * width, width)}
    if arguments.get("use_post_transformer_norm", True):
        shapes["norm.weight"] = (width,)
    tower = timm_families.tower(file, known, shapes)
    assert tower == {
        "reference": list(arguments["ref_feat_shape"]),
        "offset": arguments.get("rope_grid_offset", 0.0),
        "period": 10_000.0,
        "pool_heads": arguments.get("attn_pool_num_heads", 8),
        "final_norm": arguments.get("use_post_transformer_norm", True),
        "pool_mlp_dim": 4 * width,
    }, name
    assert arguments.get("attn_pool_mlp_ratio", 4.0) == 4.0
    form = FAMILIES["towers"]["perception"]["form"]
    assert {**form, **arguments}.items() >= form.items(), name
    del arguments["cls"]
    full = described(architecture=name, model_args=arguments)
    timm_families.check_arguments(full, known, shapes)


def check_eva02(name: str, known: Any, arguments: dict[str, Any]) -> None:
    """Heads, pooling, epsilon, and what the field `tower` says are those of timm's entry."""
    assert (known.width, known.num_heads) == (arguments["embed_dim"], arguments["num_heads"]), name
    assert known.pool == arguments.get("global_pool", "avg"), name
    file, norms = described(architecture=name), {"fc_norm.weight": (known.width,)}
    assert timm_families.epsilon(file, known, None) == 1e-6
    for argument, tensor in (("scale_attn_inner", "attn"), ("scale_mlp", "mlp")):
        if arguments.get(argument):
            norms[f"blocks.0.{tensor}.norm.weight"] = (known.width,)
    tower, turns = timm_families.tower(file, known, norms), arguments.get("use_rot_pos_emb", False)
    expected = {
        "reference": list(arguments.get("ref_feat_shape", (16, 16))),
        "offset": 0.0,
        "period": 10_000.0 if turns else None,
        "order": "yx",
        "final_norm": True,
        "key_bias": False,
        "inner_norm": arguments.get("scale_attn_inner", False),
        "mlp_norm": arguments.get("scale_mlp", False),
        "post_norm": arguments.get("use_post_norm", False),
    }
    plain = name.startswith("eva_giant")
    assert tower == (None if plain else expected), name
    assert not plain or not {*arguments} - SHOWN_BY_TENSORS - {"cls", "num_heads", "global_pool"}
    del arguments["cls"]
    full = described(architecture=name, model_args=arguments)
    assert timm_families.tower(full, known, norms) == tower
    timm_families.check_arguments(
        full, known, {"patch_embed.proj.weight": (known.width, 3, 14, 14)}
    )


def test_names_of_older_versions_are_understood() -> None:
    from timm.models import _registry

    for old, new in _registry._deprecated_models.items():
        stem = new.split(".")[0]
        if timm_families.family(stem) is not None or timm_families.is_bit(stem):
            assert timm_families.architecture_of(described(architecture=old)) == stem


def test_the_table_of_quick_tags_is_timms_own() -> None:
    """timm notes that weights are "natively QuickGELU", under its entries with exact GELU."""
    import timm

    noted: dict[str, set[str]] = {}
    for name in timm.list_pretrained("*_clip_*", exclude_filters="*quickgelu*"):
        config = timm.models.get_pretrained_cfg(name)
        if "natively QuickGELU" in "".join(config.notes or ()):
            entry, tag = name.split(".")
            noted.setdefault(entry, {config.num_classes}).add(tag)
    assert {entry: {*row} for entry, row in FAMILIES["quick"].items()} == noted
    assert sum(len(row) - 1 for row in noted.values()) == 17


def described_as(model: str, folder: Path, **description: Any) -> Path:
    """A model of timm that is saved beside this description."""
    case = one_case(model)
    path = families.saved(case, families.scatter(case.build()), "library", folder)
    (folder / "config.json").write_text(json.dumps(description))
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_so400m_patch14_siglip_gap_224.webli", {"num_heads": 16}),
        ("vit_so400m_patch16_siglip_gap_256.v2_webli", {"activation": "gelu_tanh"}),
    ],
)
def test_a_description_without_arguments_is_decided_by_the_architecture(
    name: str, expected: dict[str, Any], quick: None, tmp_path: Path
) -> None:
    """As older versions of timm wrote it, with a tag in the name."""
    path = described_as("vit_so400m_patch14_siglip_gap_224", tmp_path, architecture=name)
    assert inspect_pretrained(path).config.to_dict().items() >= expected.items()


NOT_DONE: list[tuple[str, dict[str, Any], str]] = [
    ("vit_next_patch16_224", {}, "vit_next_patch16_224 is no model"),
    *(
        ("deit_tiny_patch16_224", {argument: value}, f"{argument}={value!r}")
        for argument, value in (
            ("act_layer", "silu"),
            ("global_pool", "max"),
            ("norm_layer", "rmsnorm"),
            ("attn_layer", "diff"),
            ("pool_include_prefix", True),
            ("something_new", 3),
        )
    ),
]


@pytest.mark.parametrize(("name", "arguments", "message"), NOT_DONE)
def test_an_unknown_architecture_or_argument_that_changes_logits_is_refused_by_name(
    name: str, arguments: dict[str, Any], message: str, quick: None, tmp_path: Path
) -> None:
    described = {"model_args": {"global_pool": "avg", **arguments}} if arguments else {}
    path = described_as("deit_tiny_patch16_224", tmp_path, architecture=name, **described)
    with pytest.raises(UserError, match=message):
        create_model(pretrained=path)
