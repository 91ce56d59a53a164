"""Parts of a run that take the user's arguments, built once on trial before any data is read.

Their constructors check what they are given. Without the trial a wrong learning rate would show
after a million files have been listed.
"""

from importlib import import_module
from typing import Any

import torch
from jsonargparse import Namespace

from vit.errors import MESSAGE, UserError, shorten
from vit.training.optimizers.groups import check_arguments, param_groups

# Names and shapes of parameters as every model has them.
BACKBONE = {"blocks.0.mlp.fc1.weight": (4, 4), "blocks.0.mlp.fc1.bias": (4,)}
HEAD = {"head.weight": (4, 4), "head.bias": (4,)}


def try_optimizer(config: Namespace) -> None:
    """UserError where `config.model.optimizer` refuses its arguments or cannot take a step."""
    chosen = config.model.optimizer
    if not isinstance(chosen, Namespace) or chosen.get("class_path") is None:
        return  # a function, which has its arguments already
    arguments = _plain(chosen.get("init_args"))
    if arguments is None:
        return
    check_arguments(arguments, "model.optimizer.")
    learning = config.model.get("learning")  # masked patches have none to choose
    shapes = HEAD if learning and learning.freeze_backbone else {**BACKBONE, **HEAD}
    parameters = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    kind = _imported(chosen.class_path)
    try:
        optimizer = kind(param_groups(parameters.items(), depth=1), **arguments)
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    except UserError as error:
        raise UserError(f"model.optimizer: {error}") from error
    # RuntimeError: torch's own, such as for gradients of another layout.
    except (ValueError, TypeError, RuntimeError) as error:
        reason = shorten(" ".join(str(error).split()), MESSAGE)
        raise UserError(f"model.optimizer: {kind.__name__}: {reason}") from error


def try_callbacks(config: Namespace) -> None:
    """UserError where a callback of this package refuses its arguments.

    Callbacks of others may do anything when they are built, and are built once.
    """
    callbacks = config.trainer.callbacks or []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        path = callback.get("class_path") if isinstance(callback, Namespace) else None
        if path is None or not path.startswith("vit."):
            continue
        arguments = _plain(callback.get("init_args"))
        if arguments is not None:
            try:
                _imported(path)(**arguments)
            except UserError as error:
                name = path.rsplit(".", 1)[-1]
                raise UserError(f"trainer.callbacks: {name}: {error}") from error


def _imported(class_path: str) -> Any:
    module, name = class_path.rsplit(".", 1)
    return getattr(import_module(module), name)


def _plain(arguments: Namespace | None) -> dict[str, Any] | None:
    """The arguments, or None where some are classes to be built themselves."""
    values = {} if arguments is None else vars(arguments)
    return None if any(isinstance(v, Namespace) for v in values.values()) else dict(values)
