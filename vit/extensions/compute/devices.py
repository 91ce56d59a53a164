"""Memory of one of the devices that train a network together, without its activations.

Sizes are in bytes. Weights, gradients and AdamW's moments are float32. With DDP every device holds
all of them. FSDP2 cuts a parameter into equal numbers of rows (first axis) and pads the last ones;
around its computation a unit is gathered whole (torch/distributed/fsdp/_fully_shard).
"""

from itertools import pairwise

from torch import Tensor, nn

from vit.models.units import sharded_units


def held(
    network: nn.Module, precision: str, strategy: str | None, devices: int, *, ema: bool = False
) -> dict[str, int]:
    """Bytes that the first device holds, by kind; no other one holds more.

    `precision` is fp32 or bf16 (mixed); `strategy` None is a device alone. weights: with the copies
    that autocast makes of them; FSDP2 gathers in bfloat16 instead. exchange: buckets of gradients
    (DDP), or parameters that are gathered and gradients on their way (FSDP2).
    """
    sharded, narrow = strategy == "fsdp2", 2 if precision == "bf16" else 4
    share = 4 * sum(_share(p, devices if sharded else 1) for p in network.parameters())
    copies = 0 if sharded or narrow == 4 else share // 2
    kinds = {"weights": share + copies, "gradients": share, "optimizer": 2 * share}
    if ema:
        kinds["ema"] = share
    if strategy is not None:
        kinds["exchange"] = _gathered(network, devices, narrow) if sharded else share
    return kinds


def _share(parameter: Tensor, devices: int) -> int:
    """Elements on each device, padding included."""
    return -(-parameter.shape[0] // devices) * parameter[0].numel()


def _gathered(network: nn.Module, devices: int, narrow: int) -> int:
    """Most bytes of whole parameters and gradients at one time, in the backward pass.

    While a unit computes, the next one is gathered, both with `narrow` bytes per element, and the
    gradients of the one before are summed over the devices in float32. The root stays whole, and
    its gradients come last.
    """
    sizes, seen = [0], set()
    for unit in sharded_units(network):
        parameters = set(unit.parameters()) - seen
        seen |= parameters
        sizes.append(devices * sum(_share(p, devices) for p in parameters))
    root, largest = sizes.pop(), max(sizes)
    pair = max(map(sum, pairwise(sizes)), default=0)
    return max(narrow * (2 * root + pair + largest) + 4 * largest, (narrow + 4) * root)
