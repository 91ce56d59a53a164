import copy
from typing import Any

import pytest
import torch
from torch.optim import AdamW, Muon

from tests.training.optimizers.test_groups import groups_of, vit
from vit.training.optimizers.muon import MuonWithAdamW, orthogonalize

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def backward(model: torch.nn.Module) -> None:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(IMAGES), torch.tensor([0, 1, 2, 0])).backward()


def test_it_is_torchs_muon_on_each_hidden_matrix_and_adamw_on_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch iterates in bfloat16 on any CPU.
    monkeypatch.setattr("vit.training.optimizers.muon.has_bfloat16", lambda: True)
    ours = vit(stem_depths=(1,), patch_size=8)
    theirs = copy.deepcopy(ours)
    optimizer = MuonWithAdamW(groups_of(ours), lr=0.02, adamw_lr=0.003, weight_decay=0.1)
    named = dict(theirs.named_parameters())
    hidden = {n for n in named if n.startswith("blocks.") and named[n].dim() == 2}
    filters = {n for n in named if n.startswith("patch_embed.backbone.") and named[n].dim() == 4}
    kernels = {"patch_embed.proj.weight", "head.weight"}
    assert len(hidden) == 12
    assert len(filters) == 5  # the root, three of the bottleneck, one beside it
    # Queries, keys and values one by one, filters as rows: matrices of torch's own that share the
    # model's memory.
    matrices: dict[str, list[torch.Tensor]] = {}
    for name in sorted(hidden | filters):
        rows = named[name].detach().flatten(1)
        matrices[name] = [*rows.chunk(3)] if name.endswith("qkv.weight") else [rows]
    muon = Muon(
        [matrix for parts in matrices.values() for matrix in parts],
        lr=0.02,
        weight_decay=0.1,
        momentum=0.95,
    )
    rest = [{"params": [named[n] for n in sorted(kernels)]}]
    others = [p for n, p in named.items() if n not in hidden | filters | kernels]
    rest += [{"params": others, "weight_decay": 0.0}]
    adamw = AdamW(rest, lr=0.003, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
    for _ in range(3):
        before = {n: p.detach().clone() for n, p in named.items()}
        backward(ours)
        optimizer.step()
        backward(theirs)
        for name, parts in matrices.items():
            grad = named[name].grad
            assert grad is not None
            for part, its in zip(parts, grad.flatten(1).chunk(len(parts)), strict=True):
                part.grad = its
        muon.step()
        adamw.step()
        for name, parameter in ours.named_parameters():
            # Products of several matrices at a time may round their bfloat16 in another order.
            off, change = (parameter - named[name]).norm(), (named[name] - before[name]).norm()
            assert off <= (0.02 if name in hidden | filters else 1e-4) * change + 1e-6, name
        ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("change", [{}, {"layout": torch.channels_last}, {"at_once": 1}])
def test_layout_and_memory_change_no_result(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    first = vit(stem_depths=(1,), patch_size=8)
    second = copy.deepcopy(first)
    if "layout" in change:
        second = second.to(memory_format=change["layout"])
    one, two = MuonWithAdamW(groups_of(first)), MuonWithAdamW(groups_of(second))
    backward(first)
    one.step()
    monkeypatch.setattr("vit.training.optimizers.muon.AT_ONCE", change.get("at_once", 2**25))
    backward(second)
    two.step()
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3, msg=name)


def test_a_cpu_without_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = torch.randn(2, 8, 12)
    assert orthogonalize(updates.to("meta")).dtype == torch.bfloat16
    monkeypatch.setattr("vit.training.optimizers.muon.has_bfloat16", lambda: False)
    assert orthogonalize(updates).dtype == torch.float32


def test_one_schedule_drives_both_also_after_loading() -> None:
    model = vit()
    optimizer = MuonWithAdamW(groups_of(model, layer_decay=0.5), lr=0.02, adamw_lr=0.003)
    backward(model)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    rates = {(g["muon"], g["lr"]) for g in optimizer.param_groups}
    assert rates == {(False, 0.0015), (True, 0.01)}
    assert scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]


def test_over_a_frozen_backbone_there_is_only_adamw() -> None:
    model = vit()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    optimizer = MuonWithAdamW(groups_of(model), adamw_lr=0.01)
    backward(model)
    optimizer.step()
    assert not torch.equal(model.head.weight, vit().head.weight)
    again = MuonWithAdamW(groups_of(model))
    again.load_state_dict(optimizer.state_dict())
    assert [(g["muon"], g["lr"]) for g in again.param_groups] == [(False, 0.01)] * 2


def test_running_out_of_memory_loses_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vit()
    optimizer = MuonWithAdamW(groups_of(model))
    before = list(optimizer.param_groups)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(AdamW, "step", full)
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    assert optimizer.param_groups == before
