"""Which of transformers' models are read, and which fields of their config.json change logits.

`model_type` is compared with the list of families that give the same logits here; every other one
is refused, with its reason where it has one. Without `model_type` the tensors decide. Of vit_mae
and dpt only the encoder is read, without masking and without heads.
Source: transformers 5.23, models/: vit, deit, dinov2, dinov2_with_registers, vit_msn, vit_mae, dpt,
dinov3_vit and bit.
"""

from vit.checkpoints.files import WeightFile
from vit.errors import UserError
from vit.models.config import Activation

# Family -> epsilon of its norms where config.json does not give it.
_EPSILON = {
    "vit": 1e-12,
    "deit": 1e-12,
    "vit_msn": 1e-6,
    "vit_mae": 1e-12,
    "dpt": 1e-12,
    "dinov2": 1e-6,
    "dinov2_with_registers": 1e-6,
    "dinov3_vit": 1e-5,
}
_REASONS = {
    "clip": "a norm before the layers (CLIP)",
    "clip_vision_model": "a norm before the layers (CLIP)",
    "metaclip_2": "a norm before the layers (CLIP)",
    "metaclip_2_vision_model": "a norm before the layers (CLIP)",
    "mlcd": "rotary positions",
    "mlcd_vision_model": "rotary positions",
    "siglip": "key names that are not read; timm's files of SigLIP are",
    "siglip_vision_model": "key names that are not read; timm's files of SigLIP are",
    "siglip2": "patches of NaFlex",
    "siglip2_vision_model": "patches of NaFlex",
    "beit": "relative positions and keys without biases",
    "data2vec-vision": "relative positions and keys without biases",
    "aimv2": "RMS norms and gated MLPs",
    "aimv2_vision_model": "RMS norms and gated MLPs",
    "ijepa": "the mean over tokens without a class token",
    "yolos": "tokens for detection",
    "vit-hybrid": "the ResNet stem of an older version",
    "audio-spectrogram-transformer": "spectrograms as input",
    "timesformer": "videos as input",
    "vivit": "videos as input",
    "videomae": "videos as input",
    "timm_wrapper": "tensors of timm under other names; take the library's own file",
}
_QUERIES = (".query.bias", ".q_proj.bias")
_KEYS = (".key.bias", ".k_proj.bias")
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# Fields of a BiT's config.json and the only value that is BiT's architecture.
_BIT = {
    "layer_type": "preactivation",
    "global_padding": None,
    "hidden_act": "relu",
    "num_groups": 32,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
    "width_factor": 1,
}


def check_family(file: WeightFile) -> None:
    """UserError for a model that is not known to give the same logits here.

    config.json names it; without one, a tensor that none of ours has does.
    """
    name = file.config.get("model_type")
    if not isinstance(name, str):
        sign = _foreign_sign(file)
        if sign:
            raise UserError(f"{file.path} has {sign}, which is not supported here")
        return
    if name in (*_EPSILON, "bit"):
        return
    if name in _REASONS:
        raise UserError(
            f"{file.path}: Hugging Face's {name} has {_REASONS[name]}, which is not supported here"
        )
    raise UserError(
        f"{file.path}: Hugging Face's {name} is no model that is known here to give the same logits"
    )


def _foreign_sign(file: WeightFile) -> str:
    """A part that our models do not have by the names of a bare file's tensors; '' if none."""
    keys = list(file.shapes)
    if any("relative_position_bias" in key for key in keys):
        return "relative positions (as in BEiT)"
    queries, biases = (any(key.endswith(ends) for key in keys) for ends in (_QUERIES, _KEYS))
    return (
        "keys without biases beside queries that have them (as in BEiT)" if queries > biases else ""
    )


def epsilon(file: WeightFile, *, dinov2: bool) -> float | None:
    """Epsilon of the norms by the user's word or config.json, whose default is its family's.

    None where neither says it: the families with the same tensors have different ones.
    """
    family = file.config.get("model_type") or ("dinov2" if dinov2 else None)
    value = file.hints.get("layer_norm_eps", file.config.get("layer_norm_eps"))
    value = _EPSILON.get(family or "") if value is None else value
    return None if value is None else float(value)


def activation(file: WeightFile) -> Activation:
    """GELU's form by the user's word or config.json. UserError for another activation."""
    if "activation" in file.hints:
        return file.hints["activation"]
    name = file.config.get("hidden_act", "gelu")
    if name not in _ACTIVATIONS:
        raise UserError(f"{file.path}: hidden_act={name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def check_pooler(file: WeightFile) -> None:
    """UserError where the layer behind the class token has another activation than ours."""
    name = file.config.get("pooler_act", "tanh")
    if name != "tanh":
        raise UserError(f"{file.path}: pooler_act={name!r} is not supported here, only 'tanh'")


def check_bit(file: WeightFile) -> None:
    """UserError where config.json describes another ResNet than BiT's."""
    for name, usual in _BIT.items():
        value = file.config.get(name, usual)
        if value != usual:
            shown = "null" if usual is None else repr(usual)
            raise UserError(
                f"{file.path}: {name}={value!r} is not supported here, only {shown}, as in BiT"
            )
