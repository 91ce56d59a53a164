"""A word, a recipe and a value of a fit: how often each is read, parsed and built."""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.cli import LightningArgumentParser

from tests.command import TINY, Vit
from vit import recipes
from vit.data.settings import Sampling
from vit.runs import fit
from vit.runs.short_names import Words


def test_a_rate_is_read_parsed_and_built_once(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    optimizers: list[tuple[float, int]] = []

    def counting(place: Any, name: str, key: Callable[..., str]) -> None:
        call = getattr(place, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[key(*args, **options)] += 1
            return call(*args, **options)

        monkeypatch.setattr(place, name, counted)

    adamw, parser = torch.optim.AdamW.__init__, LightningArgumentParser

    @wraps(adamw)
    def record(optimizer: Any, groups: Any, **options: Any) -> None:
        adamw(optimizer, groups, **options)
        params = [p for group in optimizer.param_groups for p in group["params"]]
        optimizers.append((options["lr"], sum(p.numel() for p in params)))

    monkeypatch.setattr(torch.optim.AdamW, "__init__", record)
    counting(Words, "_read", lambda words, left, parts: f"read {left[0]}")
    counting(recipes, "load_yaml", lambda text, source: f"open {Path(source).name}")
    counting(parser, "parse_args", lambda parser, args: f"parse {parser.prog}")
    counting(parser, "instantiate", lambda parser, config: f"build {'model' in config}")
    counting(Sampling, "__post_init__", lambda sampling: f"sample {sampling.repeats}")
    monkeypatch.setattr(fit, "finish_rest", lambda run: None)  # these read the directory anew
    Path("a.yaml").write_text("data: {sampling: {repeats: 2}}\n")
    Path("b.yaml").write_text("trainer: {limit_val_batches: 1}\n")
    rate = "--model.optimizer.lr=0.25"
    words = [rate, "--data.root", photos, "--trainer.max_steps=1", "--trainer.max_epochs=-1"]
    done = vit("fit", "-c", "cifar10/plain", "-c", "a.yaml", "-c", "b.yaml", *words, *TINY)
    assert done.status == 0, done.err
    once = [f"read {rate}", "open plain.yaml", "open a.yaml", "open b.yaml", "parse vit fit"]
    assert [counts[name] for name in [*once, "build True", "sample 2"]] == [1] * 7, counts
    [(used, tensors)] = optimizers
    assert used == 0.25 and tensors > 1
