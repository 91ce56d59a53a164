"""config.yaml of a run: how it is written, and what differs between it and another command."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vit.writing import atomic, free_name, write_bytes
from vit.yaml_reader import load_yaml

# May differ between two starts of a run, as may all of `routes`. Images per step are compared with
# the checkpoint's.
FREE = {
    "config", "ckpt_path", "run_dir", "resume", "save_every", "on_nonfinite", "save_lora",
    "data.batch_size", "data.global_batch", "data.loading.num_workers", "data.loading.cache",
    "model.compile",
    "trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy",
    "trainer.accumulate_grad_batches", "trainer.logger", "trainer.log_every_n_steps",
    "trainer.enable_checkpointing", "trainer.enable_progress_bar", "trainer.enable_model_summary",
    "trainer.enable_autolog_hparams", "trainer.profiler", "trainer.detect_anomaly",
    "trainer.barebones", "trainer.default_root_dir", "trainer.limit_test_batches",
    "trainer.limit_predict_batches", "trainer.model_registry",
}  # fmt: skip
# These may differ too; a finished run goes on where one of them does.
LIMITS = {
    "trainer.max_epochs", "trainer.min_epochs", "trainer.max_steps", "trainer.min_steps",
    "trainer.max_time", "patience", "final_split",
}  # fmt: skip
# Groups without a fixed set of options, where one that is absent has no default here.
_OPEN = (".init_args.", ".architecture.", ".dict_kwargs.")


def recorded(config: Any) -> Any:
    """A configuration without what belongs to one start, and with absolute paths."""
    config = config.clone()
    config.ckpt_path = None
    config.run_dir = None
    config.resume = "auto"
    places = [(config.data, "root"), (config.model, "pretrained")]
    loss = config.model.get("loss")  # masked patches have none to choose
    if loss is not None and loss.get("distillation") is not None:
        places.append((loss.distillation, "teacher"))
    for group, name in places:
        place = group[name] and os.path.abspath(os.path.expanduser(group[name]))
        if place and os.path.exists(place):  # not the address of a hub
            group[name] = place  # so that the run can be scored from any directory
    return config


def write_config(parser: Any, config: Any, path: Path) -> None:
    """Writes config.yaml.

    A file that is there and says something else is kept as config.yaml.1, config.yaml.2, ...
    """
    with atomic(path) as temporary:
        parser.save(recorded(config), temporary, skip_unset=False, multifile=False)
        if path.is_file() and path.read_bytes() != temporary.read_bytes():
            write_bytes(free_name(path, ".", 1), path.read_bytes())


def differences(parser: Any, config: Any, before: dict[str, Any]) -> dict[str, str]:
    """Options that differ from a config.yaml, but for the free ones: name -> 'NAME was A and is B'.

    Options that only the file has are left out.
    """
    now = _flat(load_yaml(parser.dump(recorded(config), skip_unset=False), "the configuration"))
    then = _flat(before)
    names = [*now, *(name for name in then.keys() - now.keys() if _is_open(name))]
    return {
        name: f"{name} was {then.get(name)} and is {now.get(name)}"
        for name in names
        if name not in FREE
        and name.partition(".")[0] not in ("routes", "batch_choice")
        and then.get(name) != now.get(name)
    }


def _is_open(name: str) -> bool:
    return any(group in name for group in _OPEN)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    return dict(_leaves(values, ""))


def _leaves(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
