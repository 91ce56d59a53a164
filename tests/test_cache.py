"""VIT_CACHE moves the whole cache."""

from pathlib import Path

import pytest

from vit.cache import cache_directory


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder without VIT_CACHE, which is set to another one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("VIT_CACHE", str(tmp_path / "chosen"))
    return tmp_path / "user" / "vit"


def test_the_folder_is_the_variables_or_the_users(
    default: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_directory() == tmp_path / "chosen"
    for value in ("", None):
        if value is None:
            monkeypatch.delenv("VIT_CACHE")
        else:
            monkeypatch.setenv("VIT_CACHE", value)
        assert cache_directory() == default
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "vit"
