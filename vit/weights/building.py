"""A model built without memory or random numbers, and given the weights of a file."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vit.errors import UserError, some_of
from vit.models.zoo import Model, ModelConfig, build_model
from vit.weights.adapt import HEAD
from vit.weights.formats import Recognised


class NoInit(TorchFunctionMode):
    """Skips torch.nn.init. On the meta device it computes nothing, yet its first call takes 1.5 s
    and 170 MB, as torch then imports its compiler."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":  # some operators have none
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_empty(config: ModelConfig) -> Model:
    """The model on the meta device; `load_state_dict(..., assign=True)` gives it its weights."""
    with torch.device("meta"), NoInit():
        return build_model(config)


def filled(config: ModelConfig, recognised: Recognised) -> Model:
    """The model with the weights of a file, in float32 whatever the file has: half precision is a
    choice of the run.

    A head that is reinitialised gets zeros. UserError lists missing tensors
    (-), unexpected ones (+) and those of another shape or type.
    """
    model = build_empty(config)
    wanted, tensors, source = model.state_dict(), recognised.tensors, recognised.source
    fresh = HEAD if recognised.reinitialised else ()
    missing = [name for name in wanted if name not in tensors and not name.startswith(fresh)]
    extra = [*recognised.unexpected, *(set(tensors) - set(wanted))]
    if missing or extra:
        parts = [
            f"{len(names)} {what}: {listed(names, sign)}"
            for names, what, sign in ((missing, "missing", "-"), (extra, "unexpected", "+"))
            if names
        ]
        if "blocks.0.attn.qkv.bias" in missing:
            parts = ["it has attention without biases of q, k and v", *parts]
        raise UserError(f"{source} does not fit: {'; '.join(parts)}")
    if recognised.check is not None:
        recognised.check()
    state: dict[str, Tensor] = {}
    misfits: list[str] = []
    for name, empty in wanted.items():
        stored = tensors[name]() if name in tensors else torch.zeros(empty.shape)
        tensor = stored.float().contiguous()
        if tensor.shape != empty.shape:
            misfits.append(f"{name} {list(tensor.shape)} instead of {list(empty.shape)}")
        elif not stored.is_floating_point():
            misfits.append(f"{name} is of type {stored.dtype}")
        state[name] = tensor
    if misfits:
        raise UserError(f"{source} does not fit: {listed(misfits)}")
    model.load_state_dict(state, strict=True, assign=True)
    return model


def listed(keys: Iterable[str], sign: str = "", most: int = 6) -> str:
    """`-a -b and 7 more`: enough keys to see the pattern, on one line."""
    return some_of((sign + key for key in sorted(keys)), most, " ")
