"""Options with values that nobody chose: one line of complaint, or what was typed."""

import json
import math
import os
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonargparse import Namespace

from vit.errors import UserError
from vit.runs.options import Options
from vit.runs.short_names import Words

# By hand, with more cases and another draw each time: VIT_FUZZ=20 pytest tests/cli/test_fuzz...
TIMES = int(os.environ.get("VIT_FUZZ", "1"))


def cases(number: int) -> settings:
    """So many cases, the same ones in every run of the suite."""
    return settings(
        max_examples=number * TIMES,
        derandomize="VIT_FUZZ" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


# Values that a person, a script or a template may put there.
NUMBERS = st.one_of(
    st.sampled_from(["0", "-1", "1", "2", "0.5", "1.0", "-0.0", "1e3", "1e-300", "1e308", "1e400"]),
    st.sampled_from([".nan", ".inf", "-.inf", "nan", "inf", "9" * 30, "9" * 5000, "0x10", "1_0"]),
    st.integers().map(str),
    st.floats().map(str),
)
TEXTS = st.one_of(
    st.sampled_from(["", "null", "true", "false", "auto", "none", "~", "{}", "[]", "''", "-"]),
    st.sampled_from(["[1]", "[0.1, 2]", "{a: 1}", "[[1, 2]]", "{class_path: x}", "a: b: c", "&a"]),
    st.sampled_from(["foo", "foo.Bar", "torch.optim.SGD", "*x", "!!int x", "\u2028", "[1, .nan]"]),
    st.sampled_from(["{class_path: torch.optim.SGD, init_args: {lr: x}}", "{class_path: [1]}"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
)
VALUES = st.one_of(NUMBERS, NUMBERS, TEXTS)

# What opens files or addresses that a value may name, or prints and stops.
ELSEWHERE = ("config", "help", "resume", "run_dir", "pretrained", "teacher", "data.dataset")

INSIDE = {
    "model.schedule": "decay warmup_steps warmup_epochs warmup_start final_factor drops "
    "rsqrt_steps cooldown_steps per_epoch",
    "model.mixing": "mixup cutmix",
    "model.loss": "kind label_smoothing head_bias class_weights",
    "model.optimizer": "lr adamw_lr weight_decay momentum betas x",
    "model.architecture": "width depth mlp_dim num_heads pool dropout drop_path layer_scale x "
    "layer_norm_eps patch_size in_channels class_token num_registers representation_size",
}
"""Options of the groups that the parser takes as a whole."""
SETTLED = ("data.batch_size", "trainer.precision")
"""Options for which a value is chosen where they have none."""


class Checker(Options):
    """Parses and checks arguments as `vit fit` does, many times with one parser."""

    def check(self, *typed: str) -> Namespace:
        self.words = Words(["-c", "quickstart", *ARGUMENTS, *typed])
        self.resolve()
        return self.config


ARGUMENTS = ("--trainer.accelerator=cpu", "--trainer.precision=32-true")


@cache
def checker() -> Checker:
    return Checker(["-c", "quickstart", *ARGUMENTS])


def option_names() -> list[str]:
    """Every option of `vit fit` that names no file, and those inside groups."""
    names = {action.dest for action in checker().parser._actions}
    names |= {f"{group}.{name}" for group, inside in INSIDE.items() for name in inside.split()}
    return sorted(n for n in names if not any(part in n for part in ELSEWHERE))


NAMES = option_names()


def same(value: Any, text: str) -> bool:
    """A resolved value is what was typed."""
    if isinstance(value, Namespace):
        path = value.get("class_path") or ""
        return "class_path" in text or path.endswith(text) or text in ("", "{}", "null")
    if str(value) == text or (value is None and text == "{}"):  # an empty group is none
        return True
    try:
        read = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        both = float(value), float(read)  # what is no number is refused where it is used
        return math.isclose(*both, rel_tol=1e-12) or all(map(math.isnan, both))
    if value == read or (isinstance(value, str) and value == json.dumps(to_float(text))):
        return True
    if isinstance(value, list | tuple):
        return isinstance(read, list) and list(map(float, value)) == list(map(float, read))
    return False


def to_float(text: str) -> float | None:
    """The number of a text, or None."""
    try:
        return float(text)
    except ValueError:
        return None


@cases(80)
@given(name=st.sampled_from(NAMES), text=VALUES)
def test_a_value_is_refused_in_one_line_or_stands_in_the_configuration(
    name: str, text: str
) -> None:
    try:
        config = checker().check(f"--{name}={text}")
    except UserError as refusal:
        line = str(refusal)
        assert line and len(line) < 700
        assert len(line.splitlines()) == 1 or not text.isprintable(), line
        return
    if name in SETTLED and text in ("null", "~"):
        assert config[name] is not None
        return
    place = name
    if name.startswith("model.optimizer."):
        place = name.replace("optimizer.", "optimizer.init_args.")
    if name.startswith("model.architecture."):
        architecture = config.model.architecture
        assert same(architecture[name.rsplit(".", 1)[-1]], text)
    else:
        assert same(config.get(place), text), (config.get(place), text)


def test_the_fuzzer_knows_the_options() -> None:
    assert len(NAMES) > 120
    assert {"trainer.max_epochs", "data.batch_size", "seed_everything"} <= set(NAMES)
    with pytest.raises(UserError):
        checker().check("--trainer.max_epochs=0")
