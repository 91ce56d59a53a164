"""Damage to torch files is seen by the CRC-32 that their zip archive keeps of every member."""

from pathlib import Path

import pytest
import torch
from torch.serialization import set_crc32_options

from tests.checkpoints.checkpoint_peers import scatter
from vit.checkpoints.pretrained import create_model
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.zoo import build_model

TINY = ViTConfig(
    image_size=32, patch_size=8, width=32, depth=1, mlp_dim=40, num_heads=4, num_classes=3
)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return scatter(build_model(TINY)).state_dict()


def load(path: Path) -> dict[str, torch.Tensor]:
    return create_model(pretrained=path, num_heads=4, report=lambda _: None).state_dict()


def test_a_changed_byte_never_loads_as_other_weights(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    path = tmp_path / "weights.pth"
    torch.save(state, path)
    whole = path.read_bytes()
    refused = 0
    for at in range(7, len(whole), len(whole) // 60):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        try:
            loaded = load(path)
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
        else:  # padding between members, and fields of the archive that nobody reads
            assert all(torch.equal(loaded[name], state[name]) for name in state)
    assert refused > 30


def test_a_file_saved_without_checksums_loads(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    set_crc32_options(False)
    try:
        torch.save(state, tmp_path / "weights.pth")
    finally:
        set_crc32_options(True)
    loaded = load(tmp_path / "weights.pth")
    assert all(torch.equal(loaded[name], state[name]) for name in state)


def test_an_empty_name_is_not_the_current_directory(
    tmp_path: Path, state: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(state, tmp_path / "pytorch_model.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="pretrained='' names no file"):
        load("")  # pyright: ignore[reportArgumentType]


def test_registers_beside_a_distillation_token_are_refused(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    """timm builds DeiT's distilled models with both, and computes without the registers."""
    timm = pytest.importorskip("timm")
    model = timm.create_model("deit_tiny_distilled_patch16_224", depth=1, reg_tokens=4)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    with pytest.raises(UserError, match="registers beside a distillation token"):
        create_model(pretrained=tmp_path / "weights.pth")
