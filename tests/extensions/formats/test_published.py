"""Every row of the table of published weights follows from what others wrote; names find rows."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from vit.errors import UserError
from vit.extensions.formats.class_names import imagenet21k_classes
from vit.extensions.formats.published import Published, find, listing, table
from vit.models.config import ViTConfig
from vit.models.zoo import ZOO, build_model, model_config
from vit.weights.adapt import same_architecture
from vit.weights.names import named
from vit.weights.pretrained import inspect_pretrained

ROWS = table()
PAGES, DEFAULTS = listing()["pages"], listing()["defaults"]
BUCKETS = ("https://storage.googleapis.com/", "gs://")
VISION_TRANSFORMER = "vision_transformer README"
BIG_TRANSFER = "big_transfer README"
# "We provide models pre-trained on imagenet21k for the following architectures" there, all of them
# where `wget https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz` takes one from.
PAPER = ("vit_b16", "vit_b32", "vit_l16", "vit_l32", "vit_h14")
# "pre-trained on ILSVRC-2012 (BiT-S) or ImageNet-21k (BiT-M) for 5 different architectures", and
# "we also include" R152x2, for which there is no number of a BiT-S.
BIT = ("r50x1", "r101x1", "r50x3", "r101x3", "r152x4")
LINEAR = {"s14": 81.1, "b14": 84.5, "l14": 86.3, "g14": 86.5}
LINEAR |= {"s14_reg4": 80.9, "b14_reg4": 84.6, "l14_reg4": 86.7, "g14_reg4": 87.1}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.timm])
def test_a_row_follows_from_timms_entry(name: str) -> None:
    models = pytest.importorskip("timm.models")
    row = ROWS[name]
    assert row.timm is not None
    theirs = models.get_pretrained_cfg(row.timm)
    if row.source == f"timm {row.timm}":
        on_hub = f"https://huggingface.co/timm/{row.timm}/resolve/main/model.safetensors"
        assert row.address == (theirs.url.replace(*BUCKETS) if theirs.url else on_hub)
    assert row.licence == theirs.license
    assert row.outputs == theirs.num_classes
    assert (row.mean, row.std) == (theirs.mean, theirs.std)
    assert row.interpolation == theirs.interpolation
    if row.images is None:
        assert theirs.input_size == (3, row.image_size, row.image_size)
        assert row.crop_fraction == theirs.crop_pct
    else:  # DINOv2 is published at 224 of 256 pixels; timm states the size of its positions
        assert row.images == "dinov2 transforms" and theirs.input_size == (3, 518, 518)
        assert (row.image_size, row.crop_fraction) == (224, 224 / 256)


def test_names_without_a_tag_are_the_weights_that_their_library_takes() -> None:
    timm, theirs = pytest.importorskip("timm.models"), pytest.importorskip("torchvision.models")
    names = {row.timm.partition(".")[0] for row in ROWS.values() if row.timm}
    for name in names:
        entry = timm.get_pretrained_cfg(name)
        assert DEFAULTS[name] == f"{name}.{entry.tag}"
        full = [row.name for row in ROWS.values() if row.timm == f"{name}.{entry.tag}"]
        if full:
            assert [find(name).name] == [find(f"timm/{name}").name] == full
    for name in DEFAULTS.keys() - names:
        assert DEFAULTS[name] == str(theirs.get_model_weights(name).DEFAULT)
        assert find(name).source == f"torchvision {DEFAULTS[name]}"
    kinds = {re.sub(r"vit_(\w)(\d+)", r"vit_\1_\2", row.architecture) for row in ROWS.values()
             if row.format == "torchvision"}  # fmt: skip
    assert DEFAULTS.keys() - names == kinds


def test_torchvisions_rows_are_all_members_of_its_enums() -> None:
    models = pytest.importorskip("torchvision.models")
    rows = {row.source: row for row in ROWS.values() if row.source.startswith("torchvision ")}
    members = [
        member
        for name in dir(models)
        if re.fullmatch(r"ViT_\w_\d\d_Weights", name)
        for member in getattr(models, name)
    ]
    assert rows.keys() == {f"torchvision {member}" for member in members}
    for member in members:
        row, images = rows[f"torchvision {member}"], member.transforms()
        assert (row.address, row.outputs) == (member.url, len(member.meta["categories"]))
        assert row.bytes == round(member.meta["_file_size"] * 2**20) and not row.estimated
        assert row.accuracy == member.meta["_metrics"]["ImageNet-1K"]["acc@1"]
        assert [row.image_size] == images.crop_size
        assert row.crop_fraction == pytest.approx(row.image_size / images.resize_size[0], abs=1e-6)
        assert row.interpolation == images.interpolation.value
        assert (list(row.mean), list(row.std)) == (images.mean, images.std)
        # Meta's licence for SWAG is CC-BY-NC 4.0 (its README); torchvision's own is BSD.
        swag = "SWAG" in member.meta.get("license", "")
        assert row.licence == ("cc-by-nc-4.0" if swag else "bsd-3-clause")
        assert ("NOT FOR COMMERCIAL USE" in row.terms) == swag and row.licence_source == (
            "SWAG README" if swag else None
        )
        size = {"image_size": row.image_size}
        assert _count(model_config(row.architecture, **size)) == member.meta["num_params"]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_row_has_a_source_that_can_be_looked_up_and_its_size(row: Published) -> None:
    """The size within a percent: four bytes a parameter, at the size that the file's positions
    have."""
    if row.source in PAGES:
        assert row.address == _address_on_page(row)
    else:
        assert row.source.startswith("torchvision ") or row.source == f"timm {row.timm}"
    for source in (row.digest_source, row.images, row.licence_source):
        assert source is None or source in PAGES
    assert (row.accuracy is None) == (row.accuracy_source is None)
    assert row.accuracy_source in (None, row.source, *PAGES)
    if row.accuracy_source == "dinov2 README":
        assert row.accuracy == LINEAR[row.architecture.removeprefix("dinov2_")]
    if row.accuracy is not None:
        assert 60 < row.accuracy < 90
    config = model_config(row.architecture, num_classes=row.outputs)
    if row.source == VISION_TRANSFORMER:  # with the head of zeros that counts as none
        config = replace(config, num_classes=21_843, representation_size=config.width)  # pyright: ignore
    if isinstance(config, ViTConfig):
        config = replace(config, image_size=518 if row.images else row.image_size)
    assert row.bytes == pytest.approx(4 * _count(config), rel=0.01)


def _address_on_page(row: Published) -> str:
    if row.source == VISION_TRANSFORMER:
        assert row.architecture in PAPER and row.name.endswith(".orig_in21k")
        letter, size = row.architecture[4].upper(), row.architecture[5:]
        return f"gs://vit_models/imagenet21k/ViT-{letter}_{size}.npz"
    assert row.source == BIG_TRANSFER
    model, tag = row.name.removeprefix("bit_").split(".")
    upper = model.replace("r", "R")
    distilled = {
        "goog_distilled_in1k": f"{upper}_224",
        "goog_teacher_in21k_ft_in1k": f"{upper}_T_224",
        "goog_teacher_in21k_ft_in1k_384": f"{upper}_T_384",
    }
    if tag in distilled:
        return f"gs://bit_models/distill/{distilled[tag]}.npz"
    assert model in (*BIT, *(["r152x2"] if "in21k" in tag else []))
    kind, end = ("S", "") if tag == "goog_in1k" else ("M", "")
    end = "-ILSVRC2012" if tag == "goog_in21k_ft_in1k" else end
    return f"gs://bit_models/BiT-{kind}-{upper}{end}.npz"


@cache
def _count(config: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(config).parameters())  # pyright: ignore


def test_digests_are_those_that_somebody_publishes() -> None:
    for row in ROWS.values():
        in_name = re.search(r"-([0-9a-f]{8})\.pth$", row.address)
        if in_name:
            assert (row.sha256, row.digest_source) == (in_name[1], None)
        elif row.sha256 is not None:
            assert re.fullmatch("[0-9a-f]{64}", row.sha256) and row.digest_source
    with_digest = {row.name for row in ROWS.values() if row.sha256}
    assert {name for name in ROWS if name.startswith(("deit_", "dinov2_"))} <= with_digest


def test_every_default_is_for_all_uses() -> None:
    first = {row.architecture: row for row in reversed(ROWS.values())}
    assert not [row.name for row in first.values() if "COMMERCIAL" in row.terms]


def _layout(model: nn.Module, path: Path) -> Path:
    """A file with a model's names and shapes, of a few bytes a tensor."""
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    if "reg_token" in shapes:
        shapes["register_tokens"] = shapes.pop("reg_token")
    torch.save({key: torch.zeros(1).expand(shape) for key, shape in shapes.items()}, path)
    return path


# A row of each architecture: classes and sizes of the others are those of the entries above.
LAYOUTS = {
    (row.format, row.architecture): row.name
    for row in ROWS.values()
    if row.format in ("torchvision", "timm") and "dino" not in row.name
}


@pytest.mark.parametrize("name", LAYOUTS.values())
def test_a_file_of_the_rows_layout_is_the_rows_model(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    with torch.device("meta"):
        if row.format == "timm":
            theirs = pytest.importorskip("timm").create_model(row.timm)
        else:
            kind = re.sub(r"vit_(\w)(\d+)", r"vit_\1_\2", row.architecture)
            make = getattr(pytest.importorskip("torchvision.models"), kind)
            theirs = make(image_size=row.image_size)
    info = inspect_pretrained(_layout(theirs, tmp_path / "w.pth"))
    assert info.format == row.format
    assert same_architecture(info.config, ZOO[row.architecture].config) == []
    assert (info.config.num_classes, info.config.size) == (row.outputs, row.size)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vit_s16", "vit_s16.augreg_in21k_ft_in1k"),
        ("ViT-B/16", "vit_b16.augreg_in21k_ft_in1k"),
        ("timm/deit3_huge_patch14_224", "deit3_h14.fb_in1k"),
        ("resnetv2_152x2_bit", "bit_r152x2.goog_teacher_in21k_ft_in1k"),
        ("vit_h_14", "vit_h14.swag_ft_in1k"),
        ("vit_base_patch16_384", "vit_b16.augreg_in21k_ft_in1k_384"),
        ("vit_base_patch16_224.augreg_in21k", "vit_b16.augreg_in21k"),
        ("timm/vit_base_patch16_224.augreg_in21k", "vit_b16.augreg_in21k"),
        ("hf-hub:timm/deit_small_patch16_224.fb_in1k", "deit_s16.fb_in1k"),
        ("facebook/dinov2-small", "dinov2_s14.lvd142m"),
        ("dinov2_s14", "dinov2_s14.lvd142m"),
        ("google/vit-base-patch16-224-in21k", "vit_b16.orig_in21k"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert find(text).name == name
    found = named(text)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("vit_s16.augrg", "; of this architecture there are vit_s16.augreg_in21k_ft_in1k, vit_s16"),
        (
            "vit_base_patch16_224",
            "means vit_base_patch16_224.augreg2_in21k_ft_in1k in timm, .*vit_b16.augreg_in21k_ft",
        ),
        ("vit_giant14", ": nobody publishes any of vit_giant14"),
        ("vit_s17", "did you mean 'vit_s16'"),
        ("vit_bas_patch32_224", "did you mean 'vit_base_patch32_224'"),
        ("WEIGHTS", "`vit models --weights` lists them"),
        ("someone/their-model", "; a repository of the hub is hf://someone/their-model"),
        ("hf-hub:someone/their-model", "; a repository of the hub is hf://someone/their-model"),
        ("beit_base_patch16_224.in22k_ft_in22k", "has relative positions"),
        ("microsoft/beit-base-patch16-224", "has relative positions"),
        ("openai/clip-vit-base-patch16", "of the hub is hf://openai/clip-vit-base-patch16"),
    ],
)
def test_an_unknown_name_is_one_line_with_the_nearest(text: str, part: str) -> None:
    for function in (find, named):
        with pytest.raises(UserError, match=part):
            function(text)


@pytest.mark.parametrize(
    "text", ["", "a/b/c", "w.npz", "../vit_s16.pth", "hf://a/b", "gs://a/b", "/x", None, True]
)
def test_paths_and_addresses_are_no_names(text: object) -> None:
    assert named(text) is None


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vit_s16").mkdir()
    assert named("vit_s16") is None
    assert find("vit_s16").name == "vit_s16.augreg_in21k_ft_in1k"


def test_the_names_of_imagenet_21k_are_in_googles_order() -> None:
    info = pytest.importorskip("timm.data").ImageNetInfo("imagenet21k")
    names = imagenet21k_classes()
    assert len(names) == len(set(names)) == info.num_classes() == 21_843
    for ours, wordnet in zip(names, info.label_names(), strict=True):
        words = info.label_name_to_description(wordnet)
        assert ours in (words, f"{words} ({wordnet})")


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.gated])
def test_a_file_of_dinov3_is_completed_by_its_row(name: str, tmp_path: Path) -> None:
    """Its tensors do not say that positions are rotary, nor how many heads H+ has."""
    row = ROWS[name]
    with torch.device("meta"):
        theirs = pytest.importorskip("timm").create_model(row.timm)
    path = _layout(theirs, tmp_path / "w.pth")
    found = inspect_pretrained(path, **row.facts, image_size=row.size).config
    expected = model_config(row.architecture, num_classes=0, image_size=row.size)
    same = {"layer_scale": 1e-5, "pos_resize": "bilinear_corners", "ws_mode": "google_hybrid"}
    assert replace(found, **same) == expected  # pyright: ignore


def test_licences_with_terms_of_their_own_are_said() -> None:
    assert all(row.gated == row.architecture.startswith("dinov3_") for row in ROWS.values())
    assert "WITH TERMS OF ITS OWN" in ROWS["dinov3_s16.lvd1689m"].terms
    assert ROWS["dinov2_s14.lvd142m"].terms == "apache-2.0"
    assert find("facebook/dinov3-vitb16-pretrain-lvd1689m").name == "dinov3_b16.lvd1689m"
