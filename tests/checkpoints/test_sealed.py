"""A checkpoint with one byte changed is never loaded."""

import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from vit.checkpoints.files import open_weights
from vit.checkpoints.sealed import is_whole, seal, verify
from vit.errors import UserError

CONTENT: dict[str, Any] = {"state_dict": {"weight": torch.arange(3000.0)}, "global_step": 7}


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    path = tmp_path / "last.ckpt"
    torch.save(CONTENT, path)
    seal(path)
    return path


def test_torch_and_zipfile_pass_over_the_digest(sealed: Path) -> None:
    assert verify(sealed)
    for options in ({}, {"mmap": True}, {"map_location": "meta"}):
        assert torch.load(sealed, weights_only=True, **options)["global_step"] == 7
    assert zipfile.ZipFile(sealed).testzip() is None
    assert torch.equal(open_weights(sealed).read("weight"), CONTENT["state_dict"]["weight"])


def test_a_flipped_bit_anywhere_is_damage(sealed: Path) -> None:
    content, draw = sealed.read_bytes(), random.Random(0)
    places = [*draw.sample(range(len(content)), 300), *range(len(content) - 120, len(content))]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        sealed.write_bytes(damaged)
        assert not is_whole(sealed), place
    sealed.write_bytes(content)
    assert is_whole(sealed)


def test_a_cut_or_a_tail_is_damage(sealed: Path) -> None:
    content = sealed.read_bytes()
    ends = [content[:-n] for n in (1, 31, 32, 33, 50, 51, 72, 5000, len(content))]
    ends += [content + tail for tail in (b"x", bytes(100), content)]
    for end in ends:
        sealed.write_bytes(end)
        with pytest.raises(UserError, match=r"last\.ckpt is damaged"):
            verify(sealed)


def test_blocks_count_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "large.ckpt"
    torch.save(torch.arange(2**20, dtype=torch.float32), path)
    seal(path)
    content = path.read_bytes()
    blocks = [content[i << 20 : (i + 1) << 20] for i in range(5)]
    path.write_bytes(b"".join([blocks[0], blocks[2], blocks[1], *blocks[3:]]))
    assert path.stat().st_size == len(content)
    assert not is_whole(path)


def test_files_of_earlier_versions_have_no_digest_and_are_checked_by_tensor(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save(CONTENT, path)
    assert not verify(path)
    content = path.read_bytes()
    place = content.index(CONTENT["state_dict"]["weight"].numpy().tobytes())
    path.write_bytes(content[: place + 9] + b"\xff" + content[place + 10 :])
    with pytest.raises(UserError, match="damaged"):
        verify(path)
