"""`vit convert`: options for what a file does not record, by the words of its refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vit as package
from tests.command import Vit
from tests.extensions.formats.checkpoint_peers import assert_same, outputs
from tests.models.small_models import filled
from vit.weights.pretrained import load_pretrained

SMALL: dict[str, Any] = {"depth": 1, "width": 64, "num_heads": 2, "mlp_dim": 96, "num_classes": 3}
SIGLIP: dict[str, Any] = {**SMALL, "image_size": 64, "patch_size": 32, "width": 768}
SIGLIP |= {"num_heads": 12, "class_token": False, "pool": "gap", "activation": "gelu_tanh"}


def bare(path: Path, **options: Any) -> torch.nn.Module:
    """A state dict under timm's names, which are ours."""
    model = filled(package.create_model("vit_b16", **options))
    torch.save(model.state_dict(), path)
    return model


@pytest.mark.parametrize(
    ("options", "asked", "typed"),
    [
        (SMALL, "give num_heads=..., by --set", ["--set", "num_heads=2"]),
        (SMALL, "give num_heads=..., by --set", ["--num-heads", "2"]),
        (
            SIGLIP,
            "or 'gelu', by --set",
            ["--set", "activation=gelu_tanh"],
        ),
        (
            {**SMALL, "width": 192, "num_heads": 3, "pos_embed": "none"},
            "give pos_embed='none' if",
            ["--set", "pos_embed=none"],
        ),
        (
            {**SMALL, "width": 192, "num_heads": 3, "image_size": (32, 80), "patch_size": 16},
            "made for, by --set or --image-size",
            ["--image-size", "32", "80"],
        ),
    ],
)
def test_a_refusal_names_the_option_that_resolves_it(
    options: dict[str, Any], asked: str, typed: list[str], vit: Vit, tmp_path: Path
) -> None:
    model = bare(tmp_path / "w.pth", **options)
    command = ["convert", tmp_path / "w.pth", tmp_path / "out", "--to", "native"]
    done = vit(*command)
    assert done.status == 2 and asked in done.err
    assert vit(*command, *typed).status == 0
    config: Any = model.config
    again, _ = load_pretrained(tmp_path / "out")
    assert again.config.activation == "gelu_tanh" or "activation" not in options  # pyright: ignore
    if "activation" in options:
        assert_same(
            outputs(again.double(), config.size), outputs(model.double().eval(), config.size)
        )
    compared = vit("convert", tmp_path / "w.pth", tmp_path / "out", "--compare", "--json", *typed)
    assert json.loads(compared.out)["largest_difference"] == 0


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["--set", "num_head=2"], "num_heads"),
        (["--set", "num_heads"], "FIELD=VALUE"),
        (["--set", "num_heads=two"], "num_heads='two'"),
        (["--num-heads", "2", "--set", "activation=relu"], "activation='relu' is not one of"),
    ],
)
def test_a_field_or_value_that_cannot_be_is_refused_in_one_line(
    typed: list[str], named: str, vit: Vit, tmp_path: Path
) -> None:
    bare(tmp_path / "w.pth", **SMALL)
    done = vit("convert", tmp_path / "w.pth", tmp_path / "out", "--to", "native", *typed)
    assert done.status == 2 and named in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
