"""docs/compute.md matches the counts."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F

from vit.checkpoints.building import build_empty
from vit.models.resnet import StdConv2d, pad_same
from vit.models.zoo import model_config

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_page_and_the_results_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / "compute.py", "--check"])
    assert done.returncode == 0, "run python benchmarks/compute.py"


def test_padding_is_found_as_a_sum_of_ones_finds_it(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    """A map of ones, summed by a kernel of ones, counts the pixels that the kernel covers."""
    compute = load_benchmark("compute")
    for name in ("bit_r50x1", "r26_vit_s32"):
        model, found = build_empty(model_config(name)), []

        def met(conv, inputs, output, found=found) -> None:
            side, stride = conv.kernel_size[0], conv.stride[0]
            ones, kernel = torch.ones(1, 1, *inputs[0].shape[-2:]), torch.ones(1, 1, side, side)
            same = pad_same(ones, side, stride)
            padded = same if conv.same else F.pad(ones, [side // 2] * 4)
            covered = F.conv2d(padded, kernel, stride=stride)
            zeros = covered.numel() * side**2 - int(covered.sum())
            passes = 2 if conv.in_channels == 3 else 3
            found.append(2 * passes * zeros * conv.in_channels * conv.out_channels)

        for module in model.modules():
            if isinstance(module, StdConv2d):
                module.register_forward_hook(met)
        model(torch.empty(1, 3, 224, 224, device="meta"))
        assert sum(found) == compute.padding_flops(name) > 0
