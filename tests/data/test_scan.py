import os
from pathlib import Path

from vit.data.scan import EXTENSIONS, left_out_note, scan


def files(top: Path) -> list[str]:
    folders, _ = scan(str(top))
    return [f"{path}/{name}".lstrip("/") for path, names in folders.items() for name in names]


def left_out(top: Path) -> dict[str, int]:
    [note] = left_out_note("x", scan(str(top))[1])
    counts = (part.split(" ", 1) for part in note.removeprefix("x: left out: ").split(", "))
    return {kind: int(count) for count, kind in counts}


def test_every_extension_of_the_list_is_taken_in_any_case(tmp_path):
    for extension in EXTENSIONS:
        (tmp_path / f"a{extension}").touch()
        (tmp_path / f"b{extension.upper()}").touch()
    assert len(files(tmp_path)) == 2 * len(EXTENSIONS)
    assert {*".jpg .jpeg .png .webp .gif .tif .avif .heic .jxl".split()} <= {*EXTENSIONS}


def test_what_is_no_image_is_counted(tmp_path, make_tree):
    make_tree(tmp_path, {"cat": 1, "cat/.ipynb_checkpoints": 2, ".git": 1, "__MACOSX/cat": 1})
    for name in ("a.psd", "b.PSD", "c.txt", "README", "._0.jpg"):
        (tmp_path / "cat" / name).touch()
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    (tmp_path / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert files(tmp_path) == ["cat/0.jpg"]
    assert left_out(tmp_path) == {
        **{".psd": 2, ".txt": 1, "without extension": 1, "hidden": 1, ".jpg": 2}
    }


def test_symbolic_link_loops_list_each_folder_once(tmp_path, make_tree):
    root = make_tree(tmp_path / "root", {"cat": 2, "dog": 2})
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "self").symlink_to(root / "cat")
    (root / "a_dog").symlink_to(root / "dog")
    (root / "turning").symlink_to(root / "turning")
    assert files(root) == ["cat/0.jpg", "cat/1.jpg", "dog/0.jpg", "dog/1.jpg"]


def test_a_link_takes_no_folder_from_its_own_deeper_place(tmp_path, make_tree):
    root = make_tree(tmp_path / "root", {"cat": 1, "dog": 1, "dog/puppies": 1})
    (root / "cat" / "young").symlink_to(root / "dog" / "puppies")
    (root / "a").symlink_to(root / "dog" / "puppies")
    assert files(root) == ["cat/0.jpg", "dog/0.jpg", "dog/puppies/0.jpg"]


def test_links_to_elsewhere_are_followed(tmp_path, make_tree):
    pool = make_tree(tmp_path / "pool", {"cat": 2, "dog": 1})
    root = make_tree(tmp_path / "root", {"bird": 1})
    (root / "cat").symlink_to(pool / "cat")
    (root / "bird" / "one.jpg").symlink_to(pool / "dog" / "0.jpg")
    assert files(root) == ["bird/0.jpg", "bird/one.jpg", "cat/0.jpg", "cat/1.jpg"]
