"""Checkpoints as other packages' trainings write them, with random weights: equal to what their
home's own loader makes of them, or refused with the reason."""

import copy
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

import vit
from tests.extensions.formats.checkpoint_peers import assert_same, outputs
from vit.errors import UserError
from vit.weights.pretrained import load_pretrained

State = dict[str, Tensor]
timm: Any = pytest.importorskip("timm")
transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "num_heads": 3}


@dataclass
class Saved:
    """A checkpoint, and the model that its home's loader makes of it."""

    path: Path
    home: Callable[[Tensor], Tensor]
    features: bool = False
    """Tokens after the last norm are compared, not logits."""
    options: dict[str, Any] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    average: bool = False


def random(model: nn.Module, seed: int) -> Any:
    """In evaluation mode, with all parameters, norms and tables too, drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.1 + (1 if parameter.dim() == 1 else 0) * 0.5)
    return model.eval()


def of_timm(seed: int, **options: Any) -> Any:
    sizes = {**SIZES, "depth": 2, "num_classes": 5, **options}
    return random(timm.models.vision_transformer.VisionTransformer(**sizes), seed)


def pair(**options: Any) -> tuple[Any, Any]:
    """A model and another one in the part of its average."""
    return of_timm(1, **options), of_timm(2, **options)


def saved(path: Path, content: Mapping[str, Any]) -> Path:
    torch.save(content, path)
    return path


def under(prefix: str, state: Mapping[str, Tensor]) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def training(model: nn.Module) -> dict[str, Any]:
    """What a script of Facebook's saves beside weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    model(torch.zeros(1, 3, 32, 32)).sum().backward()
    optimizer.step()  # its state has tensors now
    return {
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "scaler": {"scale": 65536.0, "_growth_tracker": 0},
        "args": Namespace(model="vit", lr=5e-4, output_dir="out", distributed=False),
    }


def loaded(model: nn.Module, state: Mapping[str, Tensor], *, strict: bool = True) -> Any:
    """As the scripts of Facebook load: with a look at what is missing."""
    missing = model.load_state_dict(state, strict=strict).missing_keys
    assert not [name for name in missing if not name.startswith(("head", "fc_norm"))]
    return model.eval().double()


def timm_train(tmp: Path, *, use_ema: bool = True) -> Saved:
    """timm's train.py with --model-ema: its own CheckpointSaver and loader."""
    raw, average = pair()
    ema = timm.utils.ModelEmaV3(raw)
    ema.module.load_state_dict(average.state_dict())
    optimizer = torch.optim.SGD(raw.parameters(), 0.1, momentum=0.9)
    raw(torch.zeros(1, 3, 32, 32)).sum().backward()
    optimizer.step()
    args = Namespace(model="vit_tiny_patch8_32", amp=False, opt="sgd")
    saver = timm.utils.CheckpointSaver(raw, optimizer, args, ema, checkpoint_dir=str(tmp))
    saver.save_checkpoint(0, metric=71.5)
    home = of_timm(3)
    timm.models.load_checkpoint(home, str(tmp / "last.pth.tar"), use_ema=use_ema)
    return Saved(
        tmp / "last.pth.tar",
        home.double(),
        options={} if use_ema else {"weights": "raw"},
        left_out={"state_dict"} if use_ema else {"state_dict_ema"},
        average=use_ema,
    )


def torchvision_references(tmp: Path, *, average: bool = True) -> Saved:
    """references/classification/train.py: model, model_ema with n_averaged, args."""
    from torchvision.models.vision_transformer import VisionTransformer

    def build(seed: int) -> Any:
        return random(VisionTransformer(32, 8, 2, 3, 192, 384, num_classes=5), seed)

    raw = build(1)
    ema = AveragedModel(raw, use_buffers=True)
    ema.module.load_state_dict(build(2).state_dict())
    optimizer = torch.optim.SGD(raw.parameters(), 0.1)
    parts = [torch.optim.lr_scheduler.LinearLR(optimizer) for _ in range(2)]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [1])
    content = training(raw) | {
        "model": raw.state_dict(),
        "model_ema": ema.state_dict(),
        "lr_scheduler": schedule.state_dict(),
    }
    home = AveragedModel(build(3), use_buffers=True)
    if average:  # --test-only
        home.load_state_dict(content["model_ema"])
    else:
        home.module.load_state_dict(content["model"])
    return Saved(
        saved(tmp / "checkpoint.pth", content),
        home.module.eval().double(),
        options={} if average else {"weights": "raw"},
        left_out={"model"} if average else {"model_ema"},
        average=average,
    )


def dino(tmp: Path) -> Saved:
    """dino/main_dino.py: the student is in DistributedDataParallel, the teacher is not."""
    raw, average = pair(num_classes=0)
    head = under("head.mlp.0.", nn.Linear(192, 16).state_dict())
    content = training(raw) | {
        "student": under("module.", under("backbone.", raw.state_dict()) | head),
        "teacher": under("backbone.", average.state_dict()) | head,
        "dino_loss": {"center": torch.zeros(1, 8)},
    }
    # dino/utils.py, load_pretrained_weights(checkpoint_key="teacher")
    state = {k.replace("backbone.", ""): v for k, v in content["teacher"].items()}
    home = loaded(of_timm(3, num_classes=0), state, strict=False).forward_features
    left_out = {"student", "teacher.head", "dino_loss"}
    return Saved(saved(tmp / "a.pth", content), home, True, left_out=left_out, average=True)


def dinov2(tmp: Path) -> Saved:
    """dinov2/train/train.py, do_test: the teacher alone, its blocks in chunks for FSDP."""
    model = of_timm(1, patch_size=8, init_values=0.1, num_classes=0, depth=4)
    chunks = {
        re.sub(r"^blocks\.(\d)", lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}", k): v
        for k, v in model.state_dict().items()
    }
    chunks["mask_token"] = torch.zeros(1, 192)
    heads = under("dino_head.mlp.0.", nn.Linear(192, 16).state_dict())
    content = {"teacher": under("backbone.", chunks) | heads}
    left_out = {"mask_token", "teacher.dino_head"}
    home = model.double().forward_features
    return Saved(saved(tmp / "a.pth", content), home, True, left_out=left_out, average=True)


class MaskedTimm(nn.Module):
    """lightly's MaskedVisionTransformerTIMM."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.vit, self.mask_token = network, nn.Parameter(torch.zeros(1, 1, 192))


def lightly_mae(tmp: Path) -> Saved:
    model, decoder = of_timm(1, num_classes=0), of_timm(2)
    state = under("backbone.", MaskedTimm(model).state_dict())
    state |= under("decoder.decoder_blocks.", decoder.blocks.state_dict())
    path = saved(tmp / "a.ckpt", {"state_dict": state, "pytorch-lightning_version": "2.5"})
    left_out = {"state_dict.backbone.mask_token", "state_dict.decoder"}
    return Saved(path, model.double().forward_features, True, left_out=left_out)


def lightly_dino(tmp: Path) -> Saved:
    """In lightly's benchmarks the teacher is called backbone, the student student_backbone."""
    raw, average = pair(num_classes=0)
    state = under("student_backbone.vit.", raw.state_dict())
    state |= under("backbone.vit.", average.state_dict())
    state |= under("projection_head.layers.0.", nn.Linear(192, 16).state_dict())
    path = saved(tmp / "a.ckpt", {"state_dict": state})
    left_out = {"state_dict.student_backbone", "state_dict.projection_head"}
    home = average.double().forward_features
    return Saved(path, home, True, left_out=left_out, average=True)


class Wrapping(LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.net = network
        self.save_hyperparameters({"lr": 0.1, "name": "vit"})

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def fitted(tmp: Path, *callbacks: Any) -> tuple[Path, Wrapping]:
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(
        max_steps=3, accelerator="cpu", default_root_dir=tmp, callbacks=[*callbacks],
        enable_checkpointing=True, **quiet,
    )  # fmt: skip
    module = Wrapping(of_timm(1))
    trainer.fit(module, DataLoader(torch.randn(6, 3, 32, 32), batch_size=2))  # pyright: ignore
    [path] = tmp.rglob("*.ckpt")
    return path, module


def lightning(tmp: Path) -> Saved:
    path, module = fitted(tmp)
    return Saved(path, module.net.eval().double())


def lightning_averaged(tmp: Path, *, average: bool = True) -> Saved:
    """Lightning's WeightAveraging: `state_dict` is the average."""
    path, _ = fitted(tmp, WeightAveraging(avg_fn=lambda old, new, _: 0.5 * old + 0.5 * new))
    content = torch.load(path, weights_only=True)
    states = [content[name] for name in ("state_dict", "current_model_state")]
    assert not torch.equal(*(state["net.head.weight"] for state in states))
    home = of_timm(3)
    home.load_state_dict({k.removeprefix("net."): v for k, v in states[not average].items()})
    return Saved(
        path,
        home.double(),
        options={} if average else {"weights": "raw"},
        left_out={"current_model_state" if average else "state_dict"},
        average=average,
    )


def of_transformers() -> Any:
    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=2, num_attention_heads=3, intermediate_size=384,
        image_size=32, patch_size=8, id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1},
    )  # fmt: skip
    return random(transformers.ViTForImageClassification(config), 1)


def transformers_trainer(tmp: Path) -> Saved:
    """A checkpoint-500 folder of Trainer: weights, its own arguments and states beside them."""
    folder, model = tmp / "checkpoint-500", of_transformers()
    model.save_pretrained(folder)
    torch.save(torch.optim.AdamW(model.parameters()).state_dict(), folder / "optimizer.pt")
    torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "training_args.bin").write_bytes(b"\x80 a pickle of TrainingArguments")
    (folder / "trainer_state.json").write_text('{"global_step": 500}')
    home = transformers.ViTForImageClassification.from_pretrained(folder).eval().double()
    return Saved(folder, lambda images: home(images).logits)


def transformers_in_lightning(tmp: Path) -> Saved:
    model = of_transformers()
    state = under("model.", model.state_dict()) | {"loss.weight": torch.ones(2)}
    path = saved(tmp / "a.ckpt", {"state_dict": state})
    options = {"num_heads": 3, "layer_norm_eps": 1e-12}
    left_out = {"state_dict.loss"}
    home = model.double()
    return Saved(path, lambda images: home(images).logits, options=options, left_out=left_out)


def transformers_encoder_with_a_head(tmp: Path) -> Saved:
    """A head beside the encoder, of which nothing says how it is computed."""
    model = of_transformers().vit
    state = under("vit.", model.state_dict()) | under("fc.", nn.Linear(192, 2).state_dict())
    save_file(state, tmp / "a.safetensors")
    options = {"num_heads": 3, "layer_norm_eps": 1e-12}
    home = model.double()
    return Saved(tmp / "a.safetensors", lambda x: home(x).last_hidden_state, True, options, {"fc"})


def wrapped(tmp: Path) -> Saved:
    """torch.compile of the whole and of blocks, FSDP of these, DDP twice, activation checkpoints
    (whose own hook takes its name off, unless it is inside of another module's)."""
    model = of_timm(1)
    inside = copy.deepcopy(model)
    for i, block in enumerate(inside.blocks):
        inside.blocks[i] = torch.compile(block)
    state = {
        re.sub(
            r"(attn|mlp)\.", r"\1._fsdp_wrapped_module._checkpoint_wrapped_module.", name
        ): tensor
        for name, tensor in inside.state_dict().items()
    }
    assert "blocks.0._orig_mod.norm1.weight" in state
    state = under("_orig_mod.module.module.model.", state)
    return Saved(saved(tmp / "a.pt", state), model.double())


def moco_v3(tmp: Path, *, average: bool = False) -> Saved:
    """moco-v3/main_moco.py. main_lincls.py reads base_encoder, raw weights, without its head."""
    raw, ema = pair(num_classes=0)
    layers = [nn.Linear(192, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)]
    head = under("head.", nn.Sequential(*layers).state_dict())
    state = under("module.base_encoder.", raw.state_dict() | head)
    state |= under("module.momentum_encoder.", ema.state_dict() | head)
    state |= under("module.predictor.0.", nn.Linear(8, 8).state_dict())
    content = {"epoch": 3, "arch": "vit_small", "state_dict": state}
    content["optimizer"] = torch.optim.SGD(raw.parameters(), 0.1).state_dict()
    start = "module.base_encoder."
    own = {k[len(start) :]: v for k, v in state.items() if k.startswith(start)}
    own = {k: v for k, v in own.items() if not k.startswith("head")}
    other = {True: "base", False: "momentum"}[average]
    return Saved(
        saved(tmp / "a.pth", content),
        (ema.double() if average else loaded(of_timm(3, num_classes=0), own)).forward_features,
        features=True,
        options={} if average else {"weights": "raw"},
        left_out={"head", f"state_dict.module.{other}_encoder", "state_dict.module.predictor"},
        average=average,
    )


def test_the_small_model_of_moco_v3_has_twelve_heads(tmp_path: Path) -> None:
    """moco-v3/vits.py, vit_small; timm's has six."""
    home = of_timm(1, embed_dim=384, num_heads=12, num_classes=0)
    state = under("module.base_encoder.", home.state_dict())
    state |= under("module.momentum_encoder.", home.state_dict())
    path = saved(tmp_path / "vit-s.pth.tar", {"arch": "vit_small", "state_dict": state})
    ours, report = load_pretrained(path)
    assert any("12 is taken" in note for note in report.notes)
    ours, home = ours.eval().double(), home.double()
    assert_same(outputs(ours.features, (32, 32)), outputs(home.forward_features, (32, 32)))


@pytest.mark.parametrize("side", [16, 48, 80])
def test_positions_of_dino_are_resized_by_its_own_rule(side: int, tmp_path: Path) -> None:
    """dino/vision_transformer.py, interpolate_pos_encoding: the size is 0.1 of a patch larger."""
    path = dino(tmp_path).path
    table = torch.load(path, weights_only=False)["teacher"]["backbone.pos_embed"]
    ours, _ = load_pretrained(path, image_size=side)
    patches, new = table[:, 1:].reshape(1, 4, 4, -1).movedim(3, 1), side // 8
    scale = ((new + 0.1) / 4,) * 2
    resized = nn.functional.interpolate(patches, scale_factor=scale, mode="bicubic")
    expected = torch.cat([table[:, :1], resized.movedim(1, 3).flatten(1, 2)], 1)
    torch.testing.assert_close(ours.state_dict()["pos_embed"], expected)


def mae(tmp: Path) -> Saved:
    """mae/main_pretrain.py: the encoder, a mask token, and the decoder with its own table."""
    model, decoder = of_timm(1, num_classes=0), of_timm(2)
    state = model.state_dict() | {
        "mask_token": torch.zeros(1, 1, 192),
        "decoder_pos_embed": torch.zeros(1, 17, 192),
        **under("decoder_embed.", nn.Linear(192, 192).state_dict()),
        **under("decoder_blocks.", decoder.blocks.state_dict()),
        **under("decoder_norm.", decoder.norm.state_dict()),
    }
    # main_finetune.py loads what has a place.
    home = loaded(of_timm(3), state, strict=False).forward_features
    path = saved(tmp / "a.pth", training(model) | {"model": state})
    return Saved(path, home, True, left_out={"decoder"})


def ijepa(tmp: Path) -> Saved:
    """ijepa/src/train.py; its evaluations read target_encoder."""
    options = {"num_classes": 0, "class_token": False, "global_pool": "avg", "fc_norm": False}
    raw, average = pair(**options)
    content = {
        "encoder": under("module.", raw.state_dict()),
        "predictor": under("module.predictor_blocks.", raw.blocks.state_dict()),
        "target_encoder": under("module.", average.state_dict()),
        "opt": torch.optim.AdamW(raw.parameters()).state_dict(),
        "epoch": 3,
    }
    return Saved(
        saved(tmp / "a.pth.tar", content),
        average.double().forward_features,
        features=True,
        left_out={"encoder", "predictor"},
        average=True,
    )


CASES: dict[str, Callable[[Path], Saved]] = {
    "timm train.py": timm_train,
    "timm train.py, raw": lambda tmp: timm_train(tmp, use_ema=False),
    "torchvision references": torchvision_references,
    "torchvision references, raw": lambda tmp: torchvision_references(tmp, average=False),
    "DINO": dino,
    "DINOv2": dinov2,
    "lightly, MAE": lightly_mae,
    "lightly, DINO": lightly_dino,
    "Lightning": lightning,
    "Lightning, WeightAveraging": lightning_averaged,
    "Lightning, WeightAveraging, raw": lambda tmp: lightning_averaged(tmp, average=False),
    "transformers, Trainer": transformers_trainer,
    "transformers in Lightning": transformers_in_lightning,
    "transformers encoder with a head": transformers_encoder_with_a_head,
    "compile, DDP, FSDP, checkpoints": wrapped,
    "MoCo v3, raw as its own script": moco_v3,
    "MoCo v3, momentum encoder": lambda tmp: moco_v3(tmp, average=True),
    "MAE": mae,
    "I-JEPA": ijepa,
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_a_training_is_read_as_its_home_does(name: str, tmp_path: Path) -> None:
    case = CASES[name](tmp_path)
    model, report = load_pretrained(case.path, **case.options)
    ours: Any = model.eval().double()
    ours = ours.features if case.features else ours
    assert_same(outputs(ours, (32, 32)), outputs(case.home, (32, 32)))
    assert set(report.left_out) == case.left_out
    assert any("average of the training's" in note for note in report.notes) == case.average
    other = {True: "raw", False: "average"}[case.average]
    told = [why for why in report.left_out.values() if f"weights={other} takes them" in why]
    assert len(told) == (case.average and name != "DINOv2") or "weights" in case.options


def test_dinov3s_own_files_and_shards_of_dinov2s_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    state = of_timm(1, num_classes=0, init_values=0.1).state_dict()
    del state["pos_embed"]
    state |= {"storage_tokens": torch.zeros(1, 4, 192), "rope_embed.periods": torch.ones(16)}
    saved(tmp_path / "v3.pth", {"teacher": under("backbone.", state)})
    with pytest.raises(UserError, match="periods in bfloat16"):
        load_pretrained(tmp_path / "v3.pth")
    flat = {"student.backbone._fsdp_wrapped_module._flat_param": torch.zeros(100)}
    saved(tmp_path / "v2.pth", {"model": flat, "iteration": 5})
    with pytest.raises(UserError, match="holds no model that is known here"):
        load_pretrained(tmp_path / "v2.pth")


def test_several_models_are_refused_unless_one_is_chosen(tmp_path: Path) -> None:
    small, large = of_timm(1, depth=1), of_timm(2)
    path = saved(
        tmp_path / "distilled.pth",
        {"student": small.state_dict(), "teacher": large.state_dict()},
    )
    with pytest.raises(UserError, match=r"student, teacher; .*weights=raw"):
        load_pretrained(path)
    for weights, home in (("raw", small), ("average", large)):
        ours = load_pretrained(path, weights=weights)[0]  # pyright: ignore[reportArgumentType]
        assert_same(outputs(ours.eval().double(), (32, 32)), outputs(home.double(), (32, 32)))
    path = saved(tmp_path / "two.pth", {"a": small.state_dict(), "b": small.state_dict()})
    with pytest.raises(UserError, match="several models, a, b; "):
        load_pretrained(path, weights="raw")


@pytest.mark.parametrize(
    ("content", "asked", "why"),
    [
        ({"state_dict": {}}, "average", "has no average of the weights: its only ones are the raw"),
        ({"teacher": {}}, "raw", "has no raw weights: its only ones are the average"),
    ],
)
def test_weights_that_are_not_there_are_not_replaced(
    content: dict[str, Any], asked: Any, why: str, tmp_path: Path
) -> None:
    content = dict.fromkeys(content, of_timm(1).state_dict())
    with pytest.raises(UserError, match=why):
        load_pretrained(saved(tmp_path / "a.pth", content), weights=asked)
    with pytest.raises(UserError, match="give pretrained"):
        vit.create_model("vit_ti16", weights=asked)


def test_a_namespace_may_hold_plain_values_and_nothing_else(tmp_path: Path) -> None:
    state = of_timm(1).state_dict()
    for value, fine in ((["a", 1, None], True), (tmp_path, False), (re.compile("a"), False)):
        path = saved(tmp_path / "a.pth", {"model": state, "args": Namespace(value=value)})
        if fine:
            assert load_pretrained(path)[1].loaded
            continue
        with pytest.raises(UserError, match="needs code to be executed to load"):
            load_pretrained(path)


@pytest.mark.parametrize(
    "place",
    [("optimizer", "exp_avg"), ("optimizer", "momentum_buffer"), ("opt_momentum",), ("grad_ema",)],
)
def test_an_optimizers_state_is_no_set_of_weights(place: tuple[str, ...], tmp_path: Path) -> None:
    raw, moments = pair()
    content: Any = moments.state_dict()
    for name in reversed(place):
        content = {name: content}
    path = saved(tmp_path / "a.pth", {"model": raw.state_dict(), **content})
    model, report = load_pretrained(path)
    images = torch.randn(2, 3, 32, 32)
    assert_same(model.double().eval()(images.double()), raw.double()(images.double()))
    assert list(report.left_out) == [place[0]] and not any("average" in n for n in report.notes)


def test_an_average_that_is_not_read_is_named(tmp_path: Path) -> None:
    raw, average = pair()
    shadow = {"decay": 0.99, "shadow_params": [*average.state_dict().values()]}
    path = saved(tmp_path / "a.pth", {"model": raw.state_dict(), "ema": shadow})
    report = load_pretrained(path)[1]
    assert report.left_out == {"ema": "it looks like an average, in a layout that is not read"}
