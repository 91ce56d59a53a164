"""fsdp2 on two and four processes (gloo, CPU): each has a part of what one process has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.extensions.scale import sharded
from tests.models.small_models import filled
from tests.training.pairs import make_model
from vit.errors import UserError
from vit.extensions.adaptation.lora import add_lora
from vit.extensions.scale.sharding import ShardedStrategy, check_optimizer
from vit.runs.trainer import build_trainer
from vit.weights.native import save_native

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def places(training_photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Photos, and weights of other classes and of theirs."""
    folder, model = tmp_path_factory.mktemp("weights"), filled(make_model().model)
    for classes in ("xyz", "abc"):
        save_native(folder / classes, model, classes=[*classes], preprocess=None, extra={})
    return [str(training_photos), *(str(folder / classes) for classes in ("xyz", "abc"))]


@pytest.fixture(scope="module")
def trained(
    places: list[str], tmp_path_factory: pytest.TempPathFactory, deadline: Callable[[float], float]
) -> Callable[[int, str], list[dict[str, Any]]]:
    """What each of so many processes recorded of a case."""
    folder = tmp_path_factory.mktemp("sharded")
    sharded.train_all(places, folder, deadline(120))

    def read(processes: int, case: str) -> list[dict[str, Any]]:
        files = [folder / f"{processes}.{case}.{rank}" for rank in range(processes)]
        return [torch.load(file, weights_only=True) for file in files]

    return read


@pytest.mark.parametrize(
    ("processes", "case"), [(n, case) for n, cases in sharded.TRAINED.items() for case in cases]
)
def test_losses_scores_and_weights_are_those_of_one_process(
    case: str, processes: int, trained: Any, places: list[str]
) -> None:
    one, ranks = sharded.train(case, *places, 1), trained(processes, case)
    exact = 3e-2 if case == "bf16" else 1e-5
    losses = torch.tensor([rank["losses"] for rank in ranks]).mean(0)
    assert len(losses) == sharded.STEPS
    torch.testing.assert_close(losses, torch.tensor(one["losses"]), rtol=0, atol=exact)
    assert all(rank["scores"] == ranks[0]["scores"] for rank in ranks)
    assert ranks[0]["scores"] == pytest.approx(one["scores"], abs=exact, nan_ok=True)
    for name, expected in one["weights"].items():
        # Gradients of keys' biases are zero, and AdamW in Muon makes steps of rounding errors.
        if case != "bf16" and not (case == "muon" and name.endswith("qkv.bias")):
            found = ranks[0]["weights"][name]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("case", "processes"),
    [("averaged", 2), ("averaged", 4), ("mae", 2), ("muon", 2)],
)
def test_each_process_holds_its_rows_of_weights_states_and_averages(
    case: str, processes: int, trained: Any
) -> None:
    held = torch.tensor([rank["held"] for rank in trained(processes, case)])  # ranks, tensors, 2
    wholes = held[0, :, 1]
    assert torch.equal(held[..., 0].sum(0), wholes)
    large = wholes >= 256  # such as a matrix of 16 x 16; some tokens have a single row
    assert large.sum() > 10
    assert torch.equal(held[:, large, 0] * processes, wholes[large].expand(processes, -1))


def test_a_precision_that_cannot_be_sharded_is_refused() -> None:
    options: dict[str, Any] = {"devices": 2, "precision": "64-true"}
    with pytest.raises(UserError, match=r"does not support .*precision='64-true'"):
        build_trainer(accelerator="cpu", strategy="fsdp2", logger=False, **options)


def test_lora_and_optimizers_of_whole_matrices_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.optimizer=Adafactor needs whole matrices"):
        check_optimizer(torch.optim.Adafactor([torch.zeros(1)]))
    add_lora(network := make_model().model, 2)
    with pytest.raises(UserError, match=r"model\.lora cannot be merged in shards"):
        ShardedStrategy().shard(network)
