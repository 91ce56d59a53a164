import json
import os
import time
from pathlib import Path

import pytest

from vit import console
from vit.data import scan as scan_module
from vit.data.scan import Tree, ignored_note, image_extensions, scan


def files(tree: Tree) -> list[str]:
    return [
        f"{folder.path}/{name}".lstrip("/") for folder in tree.folders for name in folder.images
    ]


def settle(root: Path) -> None:
    """Dates all folders back, so that the scan trusts their clocks."""
    for folder, _, _ in os.walk(root):
        os.utime(folder, (time.time() - 100, time.time() - 100))


def index_files(cache: Path) -> list[Path]:
    return list((cache / "vit" / "index").glob("*"))


def test_every_extension_of_the_list_is_taken_in_any_case(tmp_path):
    for extension in image_extensions():
        (tmp_path / f"a{extension}").touch()
        (tmp_path / f"b{extension.upper()}").touch()
    assert len(files(scan(str(tmp_path)))) == 2 * len(image_extensions())
    assert {".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".avif"} <= image_extensions()


def test_hidden_files_and_folders_are_left_out(tmp_path, make_tree):
    make_tree(tmp_path, {"cat": 1, "cat/.ipynb_checkpoints": 2, ".git": 1, "__MACOSX/cat": 1})
    (tmp_path / "cat" / "._0.jpg").touch()
    tree = scan(str(tmp_path))
    assert files(tree) == ["cat/0.jpg"]
    assert ignored_note("x", tree.folders) == ["x: files that are not images left out: hidden 1"]


def test_other_files_are_counted_by_extension(tmp_path, make_tree):
    make_tree(tmp_path, {"cat": 1})
    for name in ("a.heic", "b.HEIC", "c.txt", "README"):
        (tmp_path / "cat" / name).touch()
    assert ignored_note("x", scan(str(tmp_path)).folders) == [
        "x: files that are not images left out: .heic 2, .txt 1, no extension 1"
    ]


def test_symbolic_link_loops_list_each_file_once(tmp_path, make_tree):
    root = make_tree(tmp_path / "root", {"cat": 2, "dog": 2})
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "above").symlink_to(tmp_path)
    (root / "cat" / "self").symlink_to(root / "cat")
    (root / "a_dog").symlink_to(root / "dog")
    (root / "cat" / "same.jpg").symlink_to(root / "cat" / "0.jpg")
    tree = scan(str(root))
    assert files(tree) == ["cat/0.jpg", "cat/1.jpg", "dog/0.jpg", "dog/1.jpg"]
    assert tree.repeats == 5


def test_links_to_elsewhere_are_followed_once(tmp_path, make_tree):
    pool = make_tree(tmp_path / "pool", {"cat": 2, "dog": 1})
    root = make_tree(tmp_path / "root", {"bird": 1})
    (root / "cat").symlink_to(pool / "cat")
    (root / "bird" / "one.jpg").symlink_to(pool / "dog" / "0.jpg")
    (root / "bird" / "two.jpg").symlink_to(pool / "dog" / "0.jpg")
    tree = scan(str(root))
    assert files(tree) == ["bird/0.jpg", "bird/one.jpg", "cat/0.jpg", "cat/1.jpg"]
    assert tree.repeats == 1


def test_broken_links_are_found_at_the_scan(tmp_path, make_tree):
    make_tree(tmp_path, {"cat": 1})
    (tmp_path / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    tree = scan(str(tmp_path))
    assert tree.dangling == ["cat/gone.jpg"] and files(tree) == ["cat/0.jpg"]


def test_a_pipe_named_jpg_is_not_an_image(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    assert files(scan(str(tmp_path))) == []


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tops that were really walked."""
    walked: list[str] = []

    class Walk(scan_module._Walk):
        def run(self) -> Tree:
            walked.append(self.top)
            return super().run()

    monkeypatch.setattr(scan_module, "_Walk", Walk)
    return walked


def test_the_second_scan_reads_the_index(tmp_path, make_tree, counted):
    root = make_tree(tmp_path / "r ö", {"cat/deep": 2})
    (root / "cat" / os.fsdecode(b"latin\xe9.jpg")).touch()
    settle(root)
    first, second = scan(str(root)), scan(str(root))
    assert counted == [str(root)]
    assert second == first and len(files(second)) == 3


def test_two_roots_have_two_indexes(tmp_path, make_tree, own_cache):
    for name in ("one", "two"):
        settle(make_tree(tmp_path / name, {"cat": 1}))
        scan(str(tmp_path / name))
    assert len(index_files(own_cache)) == 2


@pytest.mark.parametrize("change", ["add file", "remove file", "add folder", "remove folder"])
def test_any_change_makes_the_index_stale(change, tmp_path, make_tree, counted):
    root = make_tree(tmp_path / "root", {"cat/deep": 2, "cat/empty": 0})
    settle(root)
    scan(str(root))
    deep = root / "cat" / "deep"
    if change == "add file":
        (deep / "new.jpg").touch()
    elif change == "remove file":
        (deep / "0.jpg").unlink()
    elif change == "add folder":
        make_tree(deep, {"deeper": 1})
    else:
        (root / "cat" / "empty").rmdir()
    again = scan(str(root))
    assert len(counted) == 2
    assert len(files(again)) == {"add file": 3, "remove file": 1, "add folder": 3}.get(change, 2)


def test_a_folder_that_just_changed_is_not_indexed(tmp_path, make_tree, own_cache):
    """Within one tick of the file system's clock another change would go unseen."""
    scan(str(make_tree(tmp_path / "root", {"cat": 1})))
    assert index_files(own_cache) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"folders": [{"x": 1}]}', b"\xff\xfe"])
def test_a_damaged_index_is_ignored(damage, tmp_path, make_tree, own_cache, counted):
    root = make_tree(tmp_path / "root", {"cat": 2})
    settle(root)
    scan(str(root))
    index_files(own_cache)[0].write_bytes(damage)
    assert len(files(scan(str(root)))) == 2
    assert len(counted) == 2
    json.loads(index_files(own_cache)[0].read_text())


def test_an_unwritable_cache_is_no_error(tmp_path, make_tree, monkeypatch):
    root = make_tree(tmp_path / "root", {"cat": 2})
    settle(root)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(files(scan(str(root)))) == 2


def test_no_half_written_index_is_left(tmp_path, make_tree, own_cache, monkeypatch):
    root = make_tree(tmp_path / "root", {"cat": 2})
    settle(root)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert len(files(scan(str(root)))) == 2
    assert index_files(own_cache) == []


def test_progress_is_shown_only_for_slow_scans(tmp_path, make_tree, capsys, monkeypatch):
    root = make_tree(tmp_path / "root", {"cat": 2})
    scan(str(root))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "BRIEF", -1.0)
    monkeypatch.setattr(console, "PATIENCE", -1.0)
    scan(str(root))
    assert capsys.readouterr().err == "", "not a terminal"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    scan(str(root))
    captured = capsys.readouterr()
    assert "scanning" in captured.err and captured.out == ""
    assert "scanning 2 of 2 folders of " in captured.err and "2 images" in captured.err
    monkeypatch.setenv("RANK", "1")
    scan(str(root))
    assert capsys.readouterr().err == ""
