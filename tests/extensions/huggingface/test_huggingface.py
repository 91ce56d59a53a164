"""transformers' models give their own logits here, from the hub's key names and from v5's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.extensions.formats.checkpoint_peers import assert_same, outputs
from tests.models.small_models import filled
from vit.errors import UserError
from vit.extensions.formats.convert import convert
from vit.models.config import ViTConfig
from vit.weights.pretrained import inspect_pretrained, load_pretrained

transformers = pytest.importorskip("transformers")

SQUASHED = ([32, 32], "squash", 1.0, "bicubic")
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
MLP = {**SIZES, "num_labels": 5, "intermediate_size": 96}
DINO = {**SIZES, "num_labels": 5, "mlp_ratio": 2}
LABELS, REGISTERS = "ForImageClassification", "Dinov2WithRegistersForImageClassification"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": (f"ViT{LABELS}", MLP),
    "vit, gelu_new": (f"ViT{LABELS}", {**MLP, "hidden_act": "gelu_new"}),
    "bare vit with pooler": ("ViTModel", MLP),
    "deit": (f"DeiT{LABELS}", MLP),
    "deit with teacher": (f"DeiT{LABELS}WithTeacher", MLP),
    "msn": (f"ViTMSN{LABELS}", {**MLP, "layer_norm_eps": 1e-3}),
    "vit without qkv biases": (f"ViT{LABELS}", {**MLP, "qkv_bias": False}),
    "dinov2 without qkv biases": (f"Dinov2{LABELS}", {**DINO, "qkv_bias": False}),
    "dinov2 with 0 registers": (REGISTERS, {**DINO, "num_register_tokens": 0}),
    "dinov2": (f"Dinov2{LABELS}", DINO),
    "dinov2 swiglu": (f"Dinov2{LABELS}", {**DINO, "use_swiglu_ffn": True}),
    "dinov2 with registers": (REGISTERS, DINO),
}


def peer_of(kind: str) -> nn.Module:
    name, arguments = MODELS[kind]
    model = getattr(transformers, name)
    return filled(model(model.config_class(**arguments)))


def answers(peer: nn.Module):
    def run(images: torch.Tensor) -> torch.Tensor:
        result = peer(images, **resized) if images.shape[-2:] != (32, 32) else peer(images)
        return result.logits if hasattr(result, "logits") else result.pooler_output

    # DINOv2 resizes its positions always, ViT and DeiT when asked to.
    resized = {} if "Dinov2" in type(peer).__name__ else {"interpolate_pos_encoding": True}
    return run


@pytest.mark.parametrize("names", ["hub", "v5"])
@pytest.mark.parametrize("kind", MODELS)
def test_logits_equal_transformers(kind: str, names: str, tmp_path: Path) -> None:
    peer = peer_of(kind)
    peer.save_pretrained(tmp_path)  # pyright: ignore
    if names == "v5":
        torch.save(peer.state_dict(), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    ours, report = load_pretrained(tmp_path)
    assert not report.reinitialised and not report.resized
    assert set(report.left_out) <= {"dinov2.embeddings.mask_token"} | {
        "dinov2_with_registers.embeddings.mask_token"
    }
    ours, run = ours.double().eval(), answers(peer.double())
    tolerance = 1e-6 if kind == "deit" else 1e-9  # its second token meets its position in float32
    assert_same(outputs(ours, (32, 32)), outputs(run, (32, 32)), tolerance)
    # The library interpolates DINOv2's positions in float32, in double precision elsewhere.
    tolerance = 1e-6 if "dinov2" in kind else tolerance
    assert_same(outputs(ours, (64, 48)), outputs(run, (64, 48)), tolerance)


@pytest.mark.parametrize("head", [True, False])
def test_bit_logits_equal_transformers(head: bool, tmp_path: Path) -> None:
    config = transformers.BitConfig(
        depths=[1, 2, 1], hidden_sizes=[256, 512, 1024], id2label=dict(enumerate("abc"))
    )
    model = transformers.BitForImageClassification if head else transformers.BitModel
    peer = filled(model(config))
    peer.save_pretrained(tmp_path)
    ours, report = load_pretrained(tmp_path)
    assert report.classes == (["a", "b", "c"] if head else None)
    ours, peer = ours.double().eval(), peer.double()

    def run(images: torch.Tensor) -> torch.Tensor:
        result = peer(images)
        return result.logits if head else result.pooler_output.flatten(1)

    for size in ((64, 64), (65, 47)):
        assert_same(outputs(ours, size), outputs(run, size))


def test_class_names_come_from_id2label_but_placeholders_do_not(tmp_path: Path) -> None:
    config = transformers.ViTConfig(id2label={0: "b", 1: "a", 2: "c"}, **SIZES)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "named")
    peer_of("vit").save_pretrained(tmp_path / "unnamed")  # pyright: ignore
    assert inspect_pretrained(tmp_path / "named").classes == ["b", "a", "c"]
    assert inspect_pretrained(tmp_path / "unnamed").classes is None


def test_the_description_of_a_processor_comes_first_as_in_transformers(tmp_path: Path) -> None:
    peer_of("vit").save_pretrained(tmp_path)  # pyright: ignore
    part = {"image_processor_type": "ViTImageProcessor", "image_std": [0.5] * 3, "resample": 3}
    part |= {"do_resize": True, "do_normalize": True, "size": {"height": 32, "width": 32}}
    older = {**part, "image_mean": [0.5] * 3, "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
    newer = {"image_processor": {**part, "image_mean": [0.1, 0.2, 0.3]}}
    (tmp_path / "processor_config.json").write_text(json.dumps(newer))
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    for _ in range(2):
        ours = inspect_pretrained(tmp_path).preprocess
        assert ours is not None and ours["interpolation"] == "bicubic"
        assert ours["mean"] == list(theirs.image_mean) == [0.1, 0.2, 0.3]
        (tmp_path / "preprocessor_config.json").unlink(missing_ok=True)
    convert(tmp_path, tmp_path, "huggingface", overwrite=True)
    assert not (tmp_path / "processor_config.json").exists()


def test_layers_that_the_description_does_not_count_are_refused(tmp_path: Path) -> None:
    """transformers would compute without them."""
    peer_of("vit").save_pretrained(tmp_path)  # pyright: ignore
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(UserError, match="num_hidden_layers=1 is not supported here, only 2"):
        load_pretrained(tmp_path)


def test_a_file_with_two_spellings_of_one_layer_is_refused(tmp_path: Path) -> None:
    peer_of("vit").save_pretrained(tmp_path)  # pyright: ignore
    state = load_file(tmp_path / "model.safetensors")
    first = "vit.encoder.layer.0."
    state[f"{first}norm1.weight"] = state[f"{first}layernorm_before.weight"].clone()
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"1 unexpected: \+vit\.encoder\.layer\.0\.norm1\.weight"):
        load_pretrained(tmp_path)


# Base models as a state dict alone, in the spelling of transformers 4 and 5.
BARE = {
    "ViT": {},
    "DeiT": {},
    "ViTMSN": {"layer_norm_eps": 1e-6},
    "ViTMAE": {"mask_ratio": 0.0},
    "DPT": {},
    "Dinov2": {},
    "Dinov2WithRegisters": {},
}


@pytest.mark.parametrize("names", ["hub", "v5"])
@pytest.mark.parametrize("family", BARE)
def test_a_bare_base_model_asks_for_what_no_tensor_says_and_is_equal(
    family: str, names: str, tmp_path: Path
) -> None:
    config = getattr(transformers, f"{family}Config")(**{**MLP, **DINO, **BARE[family]})
    peer: Any = filled(getattr(transformers, f"{family}Model")(config))
    peer.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    path = tmp_path / "model.safetensors"
    if names == "v5":
        path = tmp_path / "weights.pth"
        torch.save(peer.state_dict(), path)
    options = {"num_heads": 4, "layer_norm_eps": config.layer_norm_eps}
    if "Dinov2" in family:  # of one epsilon, whichever they are
        del options["layer_norm_eps"]
    for name in options:
        with pytest.raises(UserError, match=rf"give {name}=\.\.\.$"):
            load_pretrained(path, **{k: v for k, v in options.items() if k != name})
    ours, report = load_pretrained(path, **options)
    assert any("GELU" in note for note in report.notes)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        tokens = ours.double().eval().features(x)
        expected = peer.double()(x).last_hidden_state
    tolerance = 1e-6 if family == "DeiT" else 1e-9
    assert_same(tokens[:, 0], expected[:, 0], tolerance)  # ViTMAE shuffles the others


def test_attention_without_biases_is_refused_where_nothing_says_that_it_has_none(
    tmp_path: Path,
) -> None:
    peer_of("dinov2 without qkv biases").save_pretrained(tmp_path)  # pyright: ignore
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="attention without biases of q, k and v"):
        load_pretrained(tmp_path, num_heads=4)


def test_real_dinov2_tokens_equal_another_engine(shared_weights: Path) -> None:
    np = pytest.importorskip("numpy")
    model, report = load_pretrained(shared_weights)
    assert isinstance(model.config, ViTConfig) and model.config.size == (518, 518)
    assert report.preprocess is not None and report.preprocess["image_size"] == [224, 224]
    pixels = np.random.default_rng(7).standard_normal((2, 3, 224, 224)).astype("float32")
    expected = torch.from_numpy(np.load(shared_weights / "reference.npz")["tokens"])
    with torch.no_grad():
        tokens = model.eval().features(torch.from_numpy(pixels))
    assert (tokens - expected).abs().max() < 1e-3
