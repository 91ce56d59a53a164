import copy

import pytest
import torch
from torch.optim import AdamW, Muon

from tests.training.test_optim import groups_of, vit
from vit.errors import UserError
from vit.training.muon import MuonWithAdamW

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def backward(model: torch.nn.Module) -> None:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(IMAGES), torch.tensor([0, 1, 2, 0])).backward()


def test_it_is_torchs_muon_on_the_encoders_matrices_and_adamw_on_the_rest() -> None:
    ours = vit()
    theirs = copy.deepcopy(ours)
    optimizer = MuonWithAdamW(groups_of(ours), lr=0.02, adamw_lr=0.003, weight_decay=0.1)
    named = dict(theirs.named_parameters())
    hidden = {n for n in named if n.startswith("blocks.") and named[n].dim() == 2}
    kernels = {"patch_embed.proj.weight", "head.weight"}
    muon = Muon([named[n] for n in sorted(hidden)], lr=0.02, weight_decay=0.1, momentum=0.95)
    rest = [{"params": [named[n] for n in sorted(kernels)]}]
    others = [p for n, p in named.items() if n not in hidden | kernels]
    rest += [{"params": others, "weight_decay": 0.0}]
    adamw = AdamW(rest, lr=0.003, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
    assert len(hidden) == 12
    for _ in range(3):
        backward(ours)
        optimizer.step()
        backward(theirs)
        muon.step()
        adamw.step()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, named[name], rtol=1e-5, atol=1e-6, msg=name)


def test_one_schedule_drives_both_also_after_loading() -> None:
    model = vit()
    optimizer = MuonWithAdamW(groups_of(model, layer_decay=0.5), lr=0.02, adamw_lr=0.003)
    backward(model)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert {g["lr"] for g in optimizer.muon.param_groups} == {0.01}
    assert {g["lr"] for g in optimizer.adamw.param_groups} == {0.0015}
    assert scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]


def test_a_loaded_optimizer_steps_as_the_saved_one() -> None:
    first = vit()
    one = MuonWithAdamW(groups_of(first))
    for _ in range(2):
        backward(first)
        one.step()
    second = copy.deepcopy(first)
    two = MuonWithAdamW(groups_of(second), lr=1.0)  # the saved rates win
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for model, optimizer in ((first, one), (second, two)):
        backward(model)
        optimizer.step()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_zero_grad_reaches_all_parameters() -> None:
    model = vit()
    optimizer = MuonWithAdamW(groups_of(model))
    backward(model)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="needs parameter groups with names"):
        MuonWithAdamW([{"params": list(vit().parameters())}])
    head = [{"params": list(vit().head.parameters()), "names": ["head.weight", "head.bias"]}]
    with pytest.raises(UserError, match=r"found no matrices in blocks\.\*"):
        MuonWithAdamW(head)
