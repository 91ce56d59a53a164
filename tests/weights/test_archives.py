"""A damaged checkpoint is never read as something else."""

import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from vit.errors import UserError
from vit.weights.archives import check_archive, read_checkpoint
from vit.weights.weight_file import open_weights

CONTENT: dict[str, Any] = {
    "state_dict": {"weight": torch.arange(90.0), "bias": torch.arange(5)},
    "global_step": 7,
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "last.ckpt"
    torch.save(CONTENT, path)
    return path


def refused(path: Path) -> bool:
    """True if the file is named as damaged; otherwise it holds the written content."""
    try:
        read = read_checkpoint(path)
    except UserError as error:
        assert "last.ckpt is damaged" in str(error) and "\n" not in str(error)
        return True
    assert read.keys() == CONTENT.keys() and read["global_step"] == 7
    assert read["state_dict"].keys() == CONTENT["state_dict"].keys()
    for name, value in CONTENT["state_dict"].items():
        assert torch.equal(read["state_dict"][name], value), name
    return False


@pytest.mark.slow
def test_no_flipped_bit_is_read_as_other_content(checkpoint: Path) -> None:
    content, draw = checkpoint.read_bytes(), random.Random(0)
    assert not refused(checkpoint)
    directory = content.index(b"PK\x01\x02")  # no CRC covers what follows
    places = [(place, draw.randrange(8)) for place in range(directory)]
    places += [(place, bit) for place in range(directory, len(content)) for bit in range(8)]
    count = 0
    for place, bit in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        checkpoint.write_bytes(damaged)
        count += refused(checkpoint)
    assert count > len(places) // 3  # the rest are padding, and fields that nobody reads


def test_a_cut_is_damage_and_a_tail_changes_nothing(checkpoint: Path) -> None:
    content = checkpoint.read_bytes()
    for length in (1, 21, 22, 23, 500, len(content) - 1, len(content)):
        checkpoint.write_bytes(content[:-length])
        assert refused(checkpoint), length
    for tail in (b"x", bytes(100), content):
        checkpoint.write_bytes(content + tail)
        refused(checkpoint)


def members(path: Path) -> list[int]:
    """Where the entries of the archive's directory begin."""
    content, found, at = path.read_bytes(), [], -1
    while (at := content.find(b"PK\x01\x02", at + 1)) >= 0:
        found.append(at)
    return found


# A field of an entry: its place, and a value that torch.save never writes.
@pytest.mark.parametrize(("field", "byte"), [(38, 0x10), (10, 8), (16, None)])
def test_an_entry_that_torch_does_not_check_is_checked(
    field: int, byte: int | None, checkpoint: Path
) -> None:
    """A folder bit, a method of compression, a CRC-32 of zero."""
    content = checkpoint.read_bytes()
    for member in members(checkpoint):
        damaged = bytearray(content)
        damaged[member + field : member + field + 4] = (byte or 0).to_bytes(4, "little")
        checkpoint.write_bytes(damaged)
        with pytest.raises(UserError, match=r"last\.ckpt is damaged"):
            check_archive(checkpoint)


def test_archives_of_other_programs_may_be_compressed_and_have_attributes(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1000))
    assert zipfile.ZipFile(path).infolist()[0].external_attr
    check_archive(path)
    content = bytearray(path.read_bytes())
    content[len("a") + 30 + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        check_archive(path)


def test_a_checkpoint_is_read_without_values_or_code(checkpoint: Path, tmp_path: Path) -> None:
    read = read_checkpoint(checkpoint, "meta")
    assert read["global_step"] == 7
    assert read["state_dict"]["weight"].is_meta and read["state_dict"]["weight"].shape == (90,)
    assert torch.equal(open_weights(checkpoint).read("bias"), CONTENT["state_dict"]["bias"])

    class Code:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    for other in ({**CONTENT, "extra": Code()}, [1], {"global_step": 1}, CONTENT["state_dict"]):
        torch.save(other, checkpoint)
        with pytest.raises(UserError, match=r"is damaged or no checkpoint|needs code to be exec"):
            read_checkpoint(checkpoint)
    assert not (tmp_path / "made").exists()
