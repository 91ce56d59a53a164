"""FSDP2 (fully_shard): a process holds some rows of every weight, gradient and optimizer state."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import nn
from torch.optim import Adafactor, Muon, Optimizer

from vit.errors import UserError
from vit.models.units import sharded_units
from vit.weights.lora import A
from vit.weights.sealed import is_sharded


class ShardedStrategy(ModelParallelStrategy):
    """Rows of all parameters divided among all processes: `--trainer.strategy fsdp2`.

    Lightning's own divides among machines only. A unit of `sharded_units` is gathered for its
    forward and its backward pass, and freed after each.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1)
        self._units: list[Any] = []

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    @contextmanager
    def model_sharded_context(self) -> Generator[None]:
        """Shards what `configure_model` has made: the module if it has parameters beside those of
        its network, as its `forward` takes them all then."""
        yield
        module: Any = self.lightning_module
        self.shard(module if module.beside() else module.model)

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        # Otherwise a block that computes before the network does takes itself for the whole.
        self._units[-1]._get_fsdp_state()._lazy_init()
        # Tensors that are first gathered in inference mode could not be trained or gathered again.
        for unit in self._units:
            unit.unshard()
            unit.reshard()

    def shard(self, network: nn.Module) -> None:
        """Shards a network in place, once. UserError for one with LoRA."""
        from torch.distributed import fsdp  # heavy

        if isinstance(network, fsdp.FSDPModule):
            return
        if any(name.endswith(f".{A}") for name, _ in network.named_parameters()):
            raise UserError(
                "model.lora cannot be merged in shards, and needs little memory: take "
                "--trainer.strategy ddp, or leave out model.lora"
            )
        # Inputs are left to autocast, as the angles of rotary positions need float32.
        policy = fsdp.MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if self.precision_plugin.precision == "bf16-mixed" else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        mesh = self.device_mesh["data_parallel"]
        for unit in sharded_units(network):
            unit.to(self.root_device)
            for tensor in (*unit.parameters(), *unit.buffers()):
                if not is_sharded(tensor):  # as ddp does: processes may have drawn other weights
                    dist.broadcast(tensor.detach(), 0)
            # By default the last unit stays whole after a pass without gradients.
            fsdp.fully_shard(unit, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
            self._units.append(unit)
        for name in ("forward_distilled", "teacher_answers"):  # which compute as `forward` does
            if hasattr(network, name):
                fsdp.register_fsdp_forward_method(network, name)

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Checks them, too."""
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            check_optimizer(optimizer)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a folder; Lightning's own writes it in place."""
        from vit.extensions.scale.sharded import save_sharded  # heavy

        save_sharded(checkpoint, Path(filepath))

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The digests of the folder have been compared. UserError for a file."""
        from vit.extensions.scale.sharded import read_sharded  # heavy

        path = Path(checkpoint_path)
        if path.is_file():
            raise UserError(
                f"{path} is of a run without fsdp2, which cannot be resumed with it; take "
                "--trainer.strategy ddp, or for one process auto, or start a new run from its "
                f"weights: --model.pretrained {path}"
            )
        return read_sharded(path, like=self.lightning_module)

    # A checkpoint has the entries of any run; Lightning's own has another optimizer's state.
    lightning_module_state_dict = Strategy.lightning_module_state_dict
    load_model_state_dict = Strategy.load_model_state_dict
    optimizer_state = Strategy.optimizer_state
    load_optimizer_state_dict = Strategy.load_optimizer_state_dict
    lightning_restore_optimizer = Strategy.lightning_restore_optimizer  # pyright: ignore


def check_optimizer(optimizer: Optimizer) -> None:
    """UserError for an optimizer of torch that needs whole matrices."""
    if isinstance(optimizer, Adafactor | Muon):
        raise UserError(
            f"model.optimizer={type(optimizer).__name__} needs whole matrices, not shards; "
            "choose torch.optim.AdamW, vit.LAMB or vit.MuonWithAdamW"
        )
