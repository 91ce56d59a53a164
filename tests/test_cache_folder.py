"""VIT_CACHE moves the whole cache."""

from pathlib import Path

import pytest

from vit.writing import cache_directory


def test_the_folder_is_the_variables_or_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for value, folder in (("chosen", Path("chosen")), ("", tmp_path / "vit")):
        monkeypatch.setenv("VIT_CACHE", value)
        assert cache_directory() == folder
    monkeypatch.delenv("VIT_CACHE")
    assert cache_directory() == tmp_path / "vit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "vit"
