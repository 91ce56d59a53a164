"""Processes that train small networks in shards, and write the bytes that each holds."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch.distributed.device_mesh import init_device_mesh

from vit.extensions.compute.timing import training_loss
from vit.extensions.scale.sharding import ShardedStrategy
from vit.models.zoo import Model, ModelConfig, build_model, model_config

# Wide, on few tokens: activations are small beside layers. Nine classes and the single row of a
# position table are not divided evenly.
NETWORKS: dict[str, ModelConfig] = {
    "vit": model_config(
        "vit_ti16", width=256, mlp_dim=1024, num_heads=4, depth=3, image_size=32, num_classes=9
    ),
    "hybrid": model_config("r26_vit_s32", depth=3, stem_depths=(1, 2), patch_size=8, image_size=16),
}
PRECISIONS = ("fp32", "bf16")


def sharded(config: ModelConfig, precision: str) -> Model:
    """A network as the strategy of a run divides it among the processes of the group."""
    torch.manual_seed(0)
    network, strategy = build_model(config), ShardedStrategy()
    processes, names = dist.get_world_size(), ("data_parallel", "tensor_parallel")
    strategy._device_mesh = init_device_mesh("cpu", (processes, 1), mesh_dim_names=names)
    strategy.parallel_devices = [torch.device("cpu")] * processes
    mixed = precision == "bf16"
    strategy.precision_plugin = MixedPrecision("bf16-mixed", "cpu") if mixed else Precision()
    strategy.shard(network)
    return network


def stored(tensors: Iterable[Any]) -> int:
    """Bytes of the local storages, padding included, each once."""
    storages = [tensor.to_local().untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def trained(config: ModelConfig, precision: str) -> dict[str, int]:
    """Bytes that this process holds after a step."""
    network = sharded(config, precision)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    training_loss(network, torch.randn(1, 3, *config.size), precision).backward()
    optimizer.step()
    moments = (t for state in optimizer.state.values() for t in state.values() if t.ndim)
    return {
        "weights": stored(network.parameters()),
        "gradients": stored(p.grad for p in network.parameters()),
        "optimizer": stored(moments),
    }


def work(folder: Path) -> None:
    dist.init_process_group("gloo")
    found = {n: {p: trained(c, p) for p in PRECISIONS} for n, c in NETWORKS.items()}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
