"""What is exported loads where it should, answers the same there, and comes back bit for bit."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import vit
from tests.extensions.formats.checkpoint_peers import assert_same, outputs
from tests.models.small_models import filled
from vit.cli.main import main
from vit.errors import UserError
from vit.extensions.formats.cli_convert import run
from vit.extensions.formats.convert import compare, convert, writable_formats
from vit.extensions.formats.exporting import Export, NativeInfo, Writable
from vit.extensions.formats.layout import Rule, bound
from vit.extensions.formats.preprocessing import to_huggingface
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import ModelConfig, build_model
from vit.preprocessing import Preprocess
from vit.tables import TABLES
from vit.weights.formats import Recognised
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained
from vit.weights.weight_file import WeightFile

FORMATS = writable_formats()
SUFFIXES = {"native": "", **{name: each.suffix for name, each in FORMATS.items()}}
SIZES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": 64,
    "depth": 2,
    "mlp_dim": 96,
    "num_heads": 4,
    "num_classes": 3,
}
TIMM: dict[str, Any] = {**SIZES, "activation": "gelu", "layer_norm_eps": 1e-6}
HF: dict[str, Any] = {**SIZES, "activation": "gelu", "layer_norm_eps": 1e-12}
DINO: dict[str, Any] = {**HF, "layer_scale": 0.1, "pool": "cls_gap", "mlp_dim": 128}
TO_TIMM: dict[str, ModelConfig] = {
    "vit": ViTConfig(**TIMM),
    "tanh gelu": ViTConfig(**{**TIMM, "activation": "gelu_tanh"}),
    "not square": ViTConfig(**{**TIMM, "image_size": (32, 48)}),
    "gap": ViTConfig(**TIMM, pool="gap", norm_after_pool=True),
    "gap after norm": ViTConfig(**TIMM, pool="gap", class_token=False),
    "map": ViTConfig(**TIMM, pool="map", class_token=False),
    "registers": ViTConfig(**TIMM, num_registers=2, layer_scale=0.1),
    "registers, no class": ViTConfig(**TIMM, num_registers=2, class_token=False, pool="gap"),
    "registers, no slot": ViTConfig(**TIMM, num_registers=2, pos_embed_class_slot=False),
    "distilled": ViTConfig(**TIMM, distillation_token=True),
    "swiglu": ViTConfig(**{**TIMM, "activation": "swiglu"}, layer_scale=1.0),
    "gray": ViTConfig(**TIMM, in_channels=1),
    "backbone": ViTConfig(**{**TIMM, "num_classes": 0}),
    "no positions": ViTConfig(**TIMM, pos_embed="none"),
    # 10 patches: a table that timm's code takes to have an entry for the class token, too.
    "sines": ViTConfig(**{**TIMM, "image_size": (16, 40)}, pos_embed="sincos2d"),
    "hybrid": ViTConfig(
        **{**TIMM, "image_size": 64, "patch_size": 32, "depth": 1}, stem_depths=(), ws_mode="timm"
    ),
    "bit": ResNetConfig(num_classes=3, ws_mode="timm"),
}
TO_HF: dict[str, ModelConfig] = {
    "vit": ViTConfig(**HF),
    "tanh gelu": ViTConfig(**{**HF, "activation": "gelu_tanh"}),
    "bare": ViTConfig(**{**HF, "num_classes": 0}, representation_size=64),
    "deit": ViTConfig(**HF, distillation_token=True),
    "dinov2": ViTConfig(**DINO),
    "dinov2 swiglu": ViTConfig(**{**DINO, "activation": "swiglu", "mlp_dim": 88}),
    "registers": ViTConfig(**DINO, num_registers=2),
    "bit": ResNetConfig(depths=(1, 2), num_classes=3, ws_mode="timm"),
}
# Written with a head over class token and patch mean, of which one half is zeros.
TO_HF_WIDER: dict[str, ModelConfig] = {
    f"{pool}, {registers} registers": ViTConfig(**{**DINO, "pool": pool}, num_registers=registers)
    for pool in ("cls", "gap")
    for registers in (0, 2)
}
TO_GOOGLE: dict[str, ModelConfig] = {
    "vit": ViTConfig(**SIZES),
    "tanh layer": ViTConfig(**SIZES, representation_size=48),
    "no slot": ViTConfig(**SIZES, pos_embed_class_slot=False),
    "gap": ViTConfig(**SIZES, pool="gap", class_token=False),
    "map": ViTConfig(**SIZES, pool="map", class_token=False),
    "hybrid": ViTConfig(**{**SIZES, "patch_size": 16}, stem_depths=(1, 1)),
    "bit": ResNetConfig(depths=(1, 2), num_classes=3, width_factor=2),
}
TO_TORCHVISION: dict[str, ModelConfig] = {
    "vit": ViTConfig(**TIMM),
    "tanh layer": ViTConfig(**TIMM, representation_size=48),
}
PREPROCESS = {
    "image_size": [32, 32],
    "resize": "crop",
    "crop_fraction": 0.5,
    "interpolation": "bicubic",
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
}
CASES = [
    ("timm", TO_TIMM),
    ("huggingface", TO_HF),
    ("google", TO_GOOGLE),
    ("torchvision", TO_TORCHVISION),
]


def native(config: ModelConfig, directory: Path) -> nn.Module:
    model = filled(build_model(config))
    classes = ["a", "b", "c"] if config.num_classes else None
    save_native(directory, model, classes=classes, preprocess=PREPROCESS, extra={})
    return model


def exported(config: ModelConfig, to: str, tmp_path: Path) -> tuple[nn.Module, Path]:
    model, target = native(config, tmp_path / "native"), tmp_path / f"out{SUFFIXES[to]}"
    convert(tmp_path / "native", target, to)
    return model, target


def size_for(config: ModelConfig) -> tuple[int, int]:
    return (64, 64) if isinstance(config, ResNetConfig) else config.size


# A BiT that timm can name has fifty layers; it goes there and back in other tests. Sines return as
# a learned table.
ONE_WAY = [("timm", "bit"), ("timm", "sines")]
BACK = [(to, kind) for to, kinds in CASES for kind in kinds if (to, kind) not in ONE_WAY]


@pytest.mark.parametrize(("to", "kind"), BACK)
def test_round_trips_are_exact_to_the_bit(to: str, kind: str, tmp_path: Path) -> None:
    config = dict(CASES)[to][kind]
    model, target = exported(config, to, tmp_path)
    convert(target, tmp_path / "again", "native", **_heads(to))
    again, info = load_pretrained(tmp_path / "again")
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    size, channels = size_for(config), config.in_channels
    assert torch.equal(
        outputs(model.double(), size, channels), outputs(again.double(), size, channels)
    )
    if to in ("timm", "huggingface") and config.num_classes:
        assert info.classes == ["a", "b", "c"]
        rounding = {"crop_rounding": "floor" if to == "huggingface" else "even", "image_size": 0}
        assert {**(info.preprocess or {}), "image_size": 0} == {**PREPROCESS, **rounding}


@pytest.mark.parametrize("kind", TO_TIMM)
def test_timm_loads_what_is_exported_for_it(kind: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    config = TO_TIMM[kind]
    model, target = exported(config, "timm", tmp_path)
    peer = timm.create_model(f"local-dir:{target}", pretrained=True).eval()
    size, channels = size_for(config), config.in_channels
    assert_same(outputs(model.double(), size, channels), outputs(peer.double(), size, channels))
    assert tuple(peer.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("kind", [*TO_HF, *TO_HF_WIDER])
def test_transformers_loads_what_is_exported_for_it(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = {**TO_HF, **TO_HF_WIDER}[kind]
    model, target = exported(config, "huggingface", tmp_path)
    architecture = json.loads((target / "config.json").read_text())["architectures"][0]
    peer, loading = getattr(transformers, architecture).from_pretrained(
        target, output_loading_info=True
    )
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    peer = peer.eval().double()

    def run(images: torch.Tensor) -> torch.Tensor:
        result = peer(images)
        return result.logits if hasattr(result, "logits") else result.pooler_output

    size = size_for(config)
    assert_same(outputs(model.double(), size), outputs(run, size))
    if config.num_classes:
        assert peer.config.id2label == {0: "a", 1: "b", 2: "c"}
    if kind in TO_HF_WIDER:
        again, report = load_pretrained(target)
        assert report.classes == ["a", "b", "c"]
        assert_same(outputs(again.double().eval(), size), outputs(model.double(), size))


@pytest.mark.parametrize("kind", TO_TORCHVISION)
def test_torchvision_loads_what_is_exported_for_it(kind: str, tmp_path: Path) -> None:
    peers = pytest.importorskip("torchvision.models.vision_transformer")
    config = TO_TORCHVISION[kind]
    assert isinstance(config, ViTConfig)
    model, target = exported(config, "torchvision", tmp_path)
    peer = peers.VisionTransformer(
        32, 8, 2, 4, 64, 96, num_classes=3, representation_size=config.representation_size
    )
    peer.load_state_dict(torch.load(target, weights_only=True))
    for module in peer.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    assert_same(outputs(model.double(), (32, 32)), outputs(peer.eval().double(), (32, 32)))


@pytest.mark.parametrize(
    ("to", "options", "named"),
    [
        ("torchvision", {"pool": "gap"}, "pool='gap'"),
        ("torchvision", {"rotary": {}}, "rotary="),
        ("huggingface", {"num_registers": 2}, "num_registers=2"),
        ("google", {"distillation_token": True}, "distillation_token=True"),
        ("timm", {"representation_size": 8}, "representation_size=8"),
        ("timm", {"distillation_token": True, "num_registers": 2}, "num_registers=2"),
        ("timm", {"distillation_token": True, "activation": "swiglu"}, "activation='swiglu'"),
        # 16 entries, which are read as 4 x 4.
        ("google", {"image_size": (16, 64)}, r"image_size=\(16, 64\)"),
    ],
)
def test_what_a_library_cannot_hold_is_refused_by_name(
    to: str, options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=named):
        exported(ViTConfig(**SIZES | options), to, tmp_path)
    assert not (tmp_path / f"out{SUFFIXES[to]}").exists()


@dataclass(frozen=True, kw_only=True)
class Newer(ViTConfig):
    """A configuration with a field that no format knows yet."""

    spiral: bool = False


PLAIN = [
    ("timm", TIMM),
    ("timm", {**TIMM, "distillation_token": True}),
    ("torchvision", TIMM),
    ("huggingface", HF),
    ("huggingface", DINO),
    ("google", SIZES),
]


@pytest.mark.parametrize(("to", "options"), PLAIN)
def test_a_feature_that_a_format_does_not_express_is_refused_by_default(
    to: str, options: dict[str, Any]
) -> None:
    assert {name for name, _ in PLAIN} == set(FORMATS)
    state = build_model(ViTConfig(**options)).state_dict()
    FORMATS[to]().write(Newer(**options), state, NativeInfo())
    with pytest.raises(UserError, match=r"has no spiral=True; (try|keep it) --to"):
        FORMATS[to]().write(Newer(**options, spiral=True), state, NativeInfo())


class Toy(Writable):
    """timm's names behind a prefix."""

    suffix = ".toy"

    def matches(self, file: WeightFile) -> bool:
        return "toy/head.weight" in file.shapes

    def recognise(self, file: WeightFile) -> Recognised:
        names = [key.removeprefix("toy/") for key in file.shapes]
        tensors, used = bound(file, [Rule(name, (f"toy/{name}",)) for name in names])
        config = ViTConfig(**{**SIZES, **file.hints})
        return Recognised(format="toy", config=config, tensors=tensors, used=used)

    def write(self, config: ModelConfig, state: Any, info: NativeInfo) -> Export:
        def save(target: Path) -> list[Path]:
            torch.save({f"toy/{name}": tensor for name, tensor in state.items()}, target)
            return [target]

        return Export(save=save, notes=["for children"])

    def refuse(self, file: WeightFile) -> UserError | None:
        return UserError("a rattle is no model") if "rattle" in file.shapes else None


def test_the_help_lists_what_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    assert f"--to {{native,{','.join(FORMATS)}}}" in capsys.readouterr().out


def test_a_format_is_one_module_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toys: Any = ModuleType("toys")
    toys.Toy = Toy
    monkeypatch.setitem(sys.modules, "toys", toys)
    monkeypatch.setitem(TABLES["formats"], "toy", "toys:Toy")
    model = native(ViTConfig(**SIZES), tmp_path / "a")
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b.toy"), "--to", "toy"]) == 0
    assert "note: for children" in capsys.readouterr().err
    again, report = load_pretrained(tmp_path / "b.toy")
    assert report.format == "toy"
    assert_same(outputs(again.double().eval(), (32, 32)), outputs(model.double(), (32, 32)))
    torch.save({"rattle": torch.zeros(1)}, tmp_path / "rattle.toy")
    with pytest.raises(UserError, match=r"rattle\.toy: a rattle is no model"):
        load_pretrained(tmp_path / "rattle.toy")


@pytest.mark.parametrize("name", ["w.npz", "w.pth", "timm.pth"])
def test_a_size_of_as_many_patches_is_not_taken_for_that_of_the_file(
    name: str, tmp_path: Path
) -> None:
    model = native(ViTConfig(**TIMM), tmp_path / "native")
    if name == "timm.pth":  # no description
        convert(tmp_path / "native", tmp_path / "timm", "timm")
        torch.save(load_file(tmp_path / "timm/model.safetensors"), tmp_path / name)
    else:
        convert(tmp_path / "native", tmp_path / name, "google" if "npz" in name else "torchvision")
    wide, report = load_pretrained(tmp_path / name, image_size=(16, 64), num_heads=4)
    assert len(report.resized) == 1 and "from 4x4 to 2x8 patches" in report.resized[0]
    again, _ = load_pretrained(tmp_path / name, num_heads=4)
    table = model.state_dict()["pos_embed"]
    assert torch.equal(again.state_dict()["pos_embed"], table)
    assert not torch.equal(wide.state_dict()["pos_embed"], table)


def test_other_arithmetic_is_said(tmp_path: Path) -> None:
    native(ViTConfig(**SIZES), tmp_path / "native")
    done = convert(tmp_path / "native", tmp_path / "out.pth", "torchvision")
    assert any("activation='gelu'" in note for note in done.notes)
    native(ResNetConfig(depths=(1, 2), num_classes=3, ws_mode="google_bit"), tmp_path / "bit")
    done = convert(tmp_path / "bit", tmp_path / "hf", "huggingface")
    assert any("ws_mode='timm'" in note for note in done.notes)


def test_another_rounding_of_the_crop_is_noted_and_a_pad_that_is_lost_refused(
    tmp_path: Path,
) -> None:
    steps = {"image_size": [32, 32], "crop_fraction": 0.9}
    model = filled(build_model(ViTConfig(**HF)))
    for name, changes, apart in (
        ("even", {}, {"huggingface"}),
        ("floor", {"crop_rounding": "floor"}, {"timm"}),
        ("squash", {"resize": "squash", "crop_fraction": 1.0}, set()),
        ("pad", {"resize": "pad", "crop_fraction": 1.0}, set()),
    ):
        save_native(tmp_path / name, model, classes=None, preprocess=steps | changes, extra={})
        for to in ("timm", "huggingface"):
            if (name, to) == ("pad", "huggingface"):
                with pytest.raises(UserError, match=r"no resize=pad to \(32, 32\)"):
                    convert(tmp_path / name, tmp_path / name / to, to)
                continue
            notes = convert(tmp_path / name, tmp_path / name / to, to).notes
            assert any("one pixel apart" in note for note in notes) == (to in apart), (name, to)
    both = filled(build_model(ViTConfig(**{**DINO, "num_classes": 0})))
    save_native(tmp_path / "both", both, classes=None, preprocess=None, extra={})
    notes = convert(tmp_path / "both", tmp_path / "both_in_timm", "timm").notes
    assert any("timm gives the class token; this model adds" in note for note in notes)
    crop = {"image_size": (32, 64), "mean": [0.5] * 3, "std": [0.5] * 3, "crop_fraction": 0.9}
    with pytest.raises(UserError, match=r"no resize=crop to \(32, 64\)"):  # it has one edge
        to_huggingface(Preprocess.from_dict(crop).to_dict(), "dinov3_vit")
    assert (
        inspect_pretrained(tmp_path / "pad" / "timm").preprocess
        == vit.load(tmp_path / "pad").preprocess.to_dict()
    )


def test_compare_tells_one_arithmetic_from_another(tmp_path: Path) -> None:
    """Same tensors, other GELU: a comparison of state dicts would see nothing."""
    native(ViTConfig(**SIZES), tmp_path / "a")
    native(ViTConfig(**{**SIZES, "activation": "gelu"}), tmp_path / "b")
    a, b = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert 1e-6 < compare(tmp_path / "a", tmp_path / "b").relative < 1e-1


EXTRA = {
    "multilabel": True,
    "thresholds": [0.25, 0.5, 0.75],
    "recipe": {"model": {"lr": 0.1}},
    "metrics": {"val/map": 0.5},
    "checkpoint": {"file": "checkpoints/best.ckpt", "epoch": 3},
    "source": "hf://me/first",
}


def test_native_to_native_keeps_all_that_a_model_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = filled(build_model(ViTConfig(**SIZES)))
    preprocess = {**PREPROCESS, "interpolation": "bilinear"}
    save_native(tmp_path / "a", model, classes=["a", "b", "c"], preprocess=preprocess, extra=EXTRA)
    assert run([str(tmp_path / "a"), str(tmp_path / "b"), "--to", "native"]) == 0
    before, after = (inspect_pretrained(tmp_path / name) for name in "ab")
    for part in ("format", "config", "classes", "preprocess", "extra"):
        assert getattr(before, part) == getattr(after, part)
    assert after.extra == EXTRA
    image = Image.new("RGB", (40, 40), "red")
    answers = [vit.load(tmp_path / name).predict(image) for name in "ab"]
    assert answers[0] == answers[1]
    assert abs(sum(answers[0][0].probabilities) - 1) > 1e-3  # sigmoids


def test_several_labels_an_image_travel_or_are_said_to_be_lost(tmp_path: Path) -> None:
    model = filled(build_model(ViTConfig(**HF)))
    save_native(tmp_path / "a", model, classes=None, preprocess=PREPROCESS, extra=EXTRA)
    convert(tmp_path / "a", tmp_path / "hf", "huggingface")
    convert(tmp_path / "hf", tmp_path / "back", "native")
    assert vit.load(tmp_path / "back").multilabel
    assert vit.load(tmp_path / "back").thresholds == EXTRA["thresholds"]
    done = convert(tmp_path / "a", tmp_path / "timm", "timm")
    assert any("sigmoids" in note for note in done.notes)


@pytest.mark.parametrize(
    "config",
    [
        ResNetConfig(depths=(1, 2), num_classes=3, ws_mode="timm"),
        ViTConfig(**HF, distillation_token=True),
        ViTConfig(**DINO),
    ],
    ids=["bit", "distilled", "dinov2"],
)
@pytest.mark.parametrize("multilabel", [False, True])
def test_a_head_divided_by_the_temperature_gives_the_same_probabilities_and_labels(
    config: ModelConfig, multilabel: bool, tmp_path: Path
) -> None:
    labels = {"multilabel": True, "thresholds": [0.25, 0.5, 0.99]} if multilabel else {}
    model, extra = filled(build_model(config)), {"temperature": 1.7, **labels}
    save_native(tmp_path / "a", model, classes=["a", "b", "c"], preprocess=PREPROCESS, extra=extra)
    convert(tmp_path / "a", tmp_path / "hf", "huggingface")
    ours, theirs = vit.load(tmp_path / "a"), vit.load(tmp_path / "hf")
    assert (ours.temperature, theirs.temperature) == (1.7, 1.0)
    assert theirs.thresholds == pytest.approx(ours.thresholds)
    images = [Image.effect_noise((40, 40), 20 * i).convert("RGB") for i in range(1, 7)]
    apart = ours.probabilities(images) - theirs.probabilities(images)
    assert apart.abs().max() < 1e-6 and ours.multilabel == theirs.multilabel
    assert [p.labels for p in ours.predict(images)] == [p.labels for p in theirs.predict(images)]


@pytest.mark.parametrize("to", ["huggingface", "google"])
def test_nothing_is_overwritten_without_the_option(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = dict(CASES)[to]["vit"]
    native(kind, tmp_path / "a")
    target = tmp_path / ("out" + SUFFIXES[to])
    arguments = ["convert", str(tmp_path / "a"), str(target), "--to", to]
    assert main(arguments) == 0
    before = {path: path.read_bytes() for path in [target, *target.glob("*")] if path.is_file()}
    capsys.readouterr()
    assert main(arguments) == 2
    assert "add --overwrite" in (line := capsys.readouterr().err) and line.count("\n") == 1
    assert all(path.read_bytes() == content for path, content in before.items())
    assert main([*arguments, "--overwrite"]) == 0
    assert compare(tmp_path / "a", target, **_heads(to)).relative < 1e-6


def _heads(to: str) -> dict[str, Any]:
    return {"num_heads": 4} if to == "torchvision" else {}


def test_a_destination_is_of_the_formats_kind_and_no_run_and_is_replaced_whole(
    tmp_path: Path,
) -> None:
    native(ViTConfig(**HF), a := tmp_path / "a")
    native(ViTConfig(**SIZES), tmp_path / "run" / "model")
    for target, to, options, message in (
        ("out", "google", {}, r"out\.npz"),
        ("out.npz", "native", {}, "directory"),
        ("a", "native", {}, "a holds a model; add --overwrite"),
        ("run", "native", {"overwrite": True}, "is a run"),
    ):
        with pytest.raises(UserError, match=message):
            convert(a, tmp_path / target, to, **options)
    convert(a, tmp_path / "b", "huggingface")
    assert (tmp_path / "b" / "preprocessor_config.json").is_file()
    convert(a, tmp_path / "b", "native", overwrite=True)
    names = {path.name for path in (tmp_path / "b").iterdir()}
    assert names == {"model.safetensors", "config.json"}
