"""VIT_CACHE moves the whole cache; files of earlier versions are found."""

from pathlib import Path

import pytest

from vit.cache import cache_directory, cached


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


def test_what_only_the_earlier_place_has_is_read_there(default: Path, tmp_path: Path) -> None:
    path = cache_directory() / "features" / "a"
    assert cached(path) == path
    (default / "features").mkdir(parents=True)
    (default / "features" / "a").touch()
    assert cached(path) == default / "features" / "a"
    path.parent.mkdir(parents=True)
    path.touch()
    assert cached(path) == path
    (default / "b").touch()
    assert cached(tmp_path / "b") == tmp_path / "b", "a folder of the user's own"
