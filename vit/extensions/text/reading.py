"""Text towers in the files of transformers and open_clip, beside their image towers.

Sources: transformers 5.24, models/{clip,metaclip_2,siglip,siglip2}/modeling_*.py; open_clip 3.3,
{model,transformer}.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vit.errors import UserError, shorten
from vit.extensions.formats.facts import count_layers
from vit.extensions.formats.layout import TRANSPOSED, Rule, bound, layer
from vit.extensions.formats.preprocessing import HUGGING_FACE
from vit.extensions.huggingface.towers import encoder_rules
from vit.extensions.text.tower import TextConfig, TextTower
from vit.extensions.towers.open_clip import layer_rules
from vit.models.config import ViTConfig
from vit.models.fields import JsonObject, is_object, is_whole
from vit.weights.building import NoInit, listed
from vit.weights.weight_file import WeightFile, read_json

_TYPES = ("clip", "metaclip_2", "siglip", "siglip2")
_SIGN = "text_model.embeddings.token_embedding.weight"
_OPEN_SIGN = "transformer.resblocks.0.attn.in_proj_weight"
_PLAIN = frozenset(
    "hf_tokenizer_name tokenizer_kwargs context_length vocab_size width heads layers mlp_ratio "
    "pad_id output_tokens pool_type no_causal_mask proj_bias act_kwargs norm_kwargs eos_id "
    "proj_type".split()
)
"""Fields of open_clip's text_cfg that are read, that tensors show, or that change nothing."""
_EXPRESSED: dict[str, tuple[object, ...]] = {
    "proj_type": ("linear",),
    "pool_type": ("argmax", "eos", "last"),
    "act_kwargs": ({"approximate": "tanh"},),
}


@dataclass(frozen=True)
class Texts:
    """A text tower, and what compares its features with those of images."""

    tower: TextTower
    scale: float
    """Factor of the cosines."""
    bias: float | None
    """Added to them for a sigmoid (SigLIP); None for a softmax."""
    clean: str | None
    """Cleaning of the texts in open_clip before the tokenizer: lower, canonicalize or whitespace;
    None in transformers, which has none."""


def read_texts(file: WeightFile) -> Texts:
    """The text tower of a file. UserError for a file without one, and for one that would give
    other features here."""
    if _SIGN in file.shapes:
        rules, facts = _of_transformers(file)
    elif any(f"{prefix}{_OPEN_SIGN}" in file.shapes for prefix in ("", "text.")):
        rules, facts = _of_open_clip(file)
    else:
        raise UserError(
            f"{file.path} has no text tower that is read here, so classes have no names in it: "
            "give a whole CLIP or SigLIP model of transformers or open_clip, or fit a head to "
            "labelled pictures (vit fit -c probe)"
        )
    clean, config = facts.pop("clean"), _config(file, rules, **facts)
    tensors, _ = bound(file, rules)
    with torch.device("meta"), NoInit():
        tower = TextTower(config)
    state = {name: read().float().contiguous() for name, read in tensors.items()}
    if config.end is not None:  # CLIP's projection has no bias
        state.setdefault("head.bias", torch.zeros(config.layers.num_classes))
    wanted = {name: tensor.shape for name, tensor in tower.state_dict().items()}
    if wrong := [n for n, shape in wanted.items() if n not in state or state[n].shape != shape]:
        raise UserError(f"{file.path}: its text tower lacks {listed(wrong)}, or of another shape")
    tower.load_state_dict(state, assign=True)
    scale, bias = (_number(file, name) for name in ("logit_scale", "logit_bias"))
    if scale is None:
        raise UserError(f"{file.path} has no logit_scale, so it compares no images with texts")
    if bias is None and config.end is None:
        raise UserError(f"{file.path} has no logit_bias, which a SigLIP has")
    return Texts(tower.eval().requires_grad_(False), float(torch.tensor(scale).exp()), bias, clean)


def _config(
    file: WeightFile, rules: Sequence[Rule], *, end: int | None, **layers: Any
) -> TextConfig:
    """Sizes by the tensors. `layers`: heads, activation and epsilon."""
    theirs = {rule.ours: rule for rule in rules}

    def size(name: str) -> tuple[int, ...]:
        rule = theirs[name]
        sides = file.shapes[rule.theirs[0]]
        return sides[::-1] if rule.op is TRANSPOSED else sides

    vocabulary, width = size("token_embed.weight")
    return TextConfig(
        layers=ViTConfig(
            width=width,
            depth=sum(name.endswith(".norm1.weight") for name in theirs),
            mlp_dim=size("blocks.0.mlp.fc1.weight")[0],
            num_classes=size("head.weight")[0],
            **layers,
        ),
        vocabulary=vocabulary,
        context=size("pos_embed")[0],
        end=end,
    )


def _number(file: WeightFile, name: str) -> float | None:
    """A tensor of one number; None if there is none."""
    tensor = file.read(name) if name in file.shapes else None
    if tensor is not None and (tensor.numel() != 1 or not tensor.isfinite().all()):
        raise UserError(f"{file.path}: {name} is not one finite number")
    return None if tensor is None else float(tensor)


def _of_transformers(file: WeightFile) -> tuple[list[Rule], JsonObject]:
    kind, prefix = file.config.get("model_type"), "text_model."
    if kind not in _TYPES:
        raise UserError(
            f"{file.path}: model_type={shorten(repr(kind))} in the config.json beside it is not "
            f"one of {', '.join(_TYPES)}, whose texts are read here"
        )
    is_clip = kind in _TYPES[:2]
    usual = HUGGING_FACE["towers"]["clip" if is_clip else "siglip"]
    values = {**usual, "num_attention_heads": 8 if is_clip else 12, "eos_token_id": 49407}
    for name in ("text_config", "text_config_dict"):
        if not is_object(part := file.config.get(name) or {}):
            raise UserError(f"{file.path}: {name} of the config.json beside it is not an object")
        values |= {name: value for name, value in part.items() if value is not None}
    act, end, known = values["hidden_act"], values["eos_token_id"], HUGGING_FACE["activations"]
    if act not in known or (is_clip and not is_whole(end)):
        raise UserError(
            f"{file.path}: hidden_act={act!r} with eos_token_id={shorten(repr(end))} of its texts "
            "is not supported here"
        )
    if kind == "clip" and end == 2:  # wrong in CLIP's first files, which are read at the largest id
        end = -1
    rules = [
        Rule("token_embed.weight", (_SIGN,)),
        Rule("pos_embed", (f"{prefix}embeddings.position_embedding.weight",)),
        *layer("norm", f"{prefix}final_layer_norm"),
        *layer("head", "text_projection" if is_clip else f"{prefix}head"),
        *encoder_rules(prefix, count_layers(file.shapes, f"{prefix}encoder.layers.")),
    ]
    return rules, {
        "num_heads": values["num_attention_heads"],
        "activation": known[act],
        "layer_norm_eps": values["layer_norm_eps"],
        "end": end if is_clip else None,
        "clean": None,
    }


def _of_open_clip(file: WeightFile) -> tuple[list[Rule], JsonObject]:
    model = read_json(file.path.parent / "open_clip_config.json").get("model_cfg")
    text = model.get("text_cfg") if is_object(model) else None
    if not is_object(model) or not is_object(text):
        raise UserError(
            f"{file.path} needs the open_clip_config.json of its repository beside it, which "
            "states the heads and the GELU of the text tower"
        )
    act, norm, cleaning = (text.get(f"{n}_kwargs") or {} for n in ("act", "norm", "tokenizer"))
    exact = "gelu_tanh" if act else "gelu"
    usual = "whitespace" if text.get("hf_tokenizer_name") else "lower"
    prefix = "text." if f"text.{_OPEN_SIGN}" in file.shapes else ""
    projection, blocks = f"{prefix}text_projection", f"{prefix}transformer.resblocks."
    has_bias = f"{projection}.bias" in file.shapes
    rules = [
        Rule("token_embed.weight", (f"{prefix}token_embedding.weight",)),
        Rule("pos_embed", (f"{prefix}positional_embedding",)),
        *layer("norm", f"{prefix}ln_final"),
        *(layer("head", projection) if has_bias else []),
        *([] if has_bias else [Rule("head.weight", (projection,), TRANSPOSED)]),
    ]
    return rules + layer_rules(blocks, count_layers(file.shapes, blocks)), {
        "num_heads": text.get("heads", 8),
        "activation": "quick_gelu" if model.get("quick_gelu") else exact,
        "layer_norm_eps": norm.get("eps", 1e-5),
        "end": _end(file, text, cleaning),
        "clean": cleaning.get("clean", usual),
    }


def _end(file: WeightFile, text: JsonObject, cleaning: JsonObject) -> int | None:
    """`TextConfig.end`. UserError for a tower with parts that ours lacks."""
    pool, causal = text.get("pool_type", "argmax"), not text.get("no_causal_mask")
    others = {f"tokenizer_kwargs.{name}": cleaning[name] for name in cleaning.keys() - {"clean"}}
    if causal == (pool == "last"):
        others["pool_type with no_causal_mask"] = [pool, not causal]
    for name, value in (text | others).items():
        if value and (name not in _PLAIN or value not in _EXPRESSED.get(name, (value,))):
            raise UserError(
                f"{file.path}: open_clip's {name}={shorten(repr(value))} of its texts is not "
                "supported here"
            )
    return None if not causal else -1 if pool == "argmax" else text.get("eos_id", 2)
