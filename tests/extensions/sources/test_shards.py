"""Shards that tarfile writes in WebDataset's layout, against the folder that they are of."""

import gc
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.command import TINY, Vit, saved, vit
from tests.grouped import image_data
from tests.pictures import encoded, scene
from vit.data.find import find_splits
from vit.data.module import ImageData
from vit.data.settings import ModelClasses, Reading, Splitting
from vit.data.sources import Splits
from vit.errors import UserError
from vit.extensions.serving.reading import range_loader
from vit.extensions.sources import addresses, shards
from vit.extensions.sources.addresses import expanded, find_shards, words_by_split
from vit.extensions.sources.shards import SUFFIX, ShardImages, make_indices, read_index

__all__ = ["vit"]
SPLITS = ("train", "val", "test")
CUT, WHOLE = Splitting(), Splitting(val_fraction=0, test_fraction=0)


def tar(path: Path, members: dict[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            content = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def pack(folder: Path, pattern: str, count: int = 3, *, cls: bool = False) -> None:
    """Writes the files of a folder to shards in an order that is not that of the folder."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.*g")}
    names = sorted(files, key=lambda name: name[::-1])
    for number in range(count):
        members: dict[str, bytes | str] = {}
        for name in names[number::count]:
            members[name] = files[name].read_bytes()
            if cls:
                members[os.path.splitext(name)[0] + ".cls"] = name.split("/")[0]
        tar(Path(pattern.format(number)), members)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """48 JPEGs and PNGs of three classes, of 40 x 48 pixels; two lie deeper, one is named a-b/."""
    root = tmp_path / "photos"
    for number in range(48):
        below = root / ("cat", "10", "a-b")[number % 3] / ("deep" if number in (3, 4) else "")
        below.mkdir(parents=True, exist_ok=True)
        kind = "PNG" if number % 7 == 0 else "JPEG"
        picture = scene(number, 48, 40)
        (below / f"{number}.{kind[:4].lower()}").write_bytes(encoded(picture, kind))
    return root


def load(root: object, cut: Splitting = CUT, **options: Any) -> Splits:
    return find_splits(None, str(root), Reading(cut=cut, **options))


def same(one: Splits, other: Splits, above: str = "") -> None:
    """The same images of the same names and labels, split by split and in the same order."""
    assert one.classes == other.classes
    for split in SPLITS:
        a, b = one.get(split), other.get(split)
        assert (a is None) == (b is None), split
        if a is None or b is None:
            continue
        assert [above + name for name in a.names] == list(b.names)
        assert (a.labels == b.labels).all()
        assert above or a.digest(one.classes) == b.digest(other.classes)
        for path, data in zip(a.items, b.items, strict=True):
            assert Path(str(path)).read_bytes() == data


@pytest.mark.parametrize("cls", [False, True])
@pytest.mark.parametrize("kind", ["{}", "{}/*.tar", "{}/set-{{000..002}}.tar"])
def test_shards_are_cut_as_their_folder(kind: str, cls: bool, photos: Path, tmp_path: Path) -> None:
    pack(photos, f"{tmp_path}/shards/set-{{:03}}.tar", cls=cls)
    same(load(photos), load(kind.format(tmp_path / "shards")))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("{}-{{:03}}.tar", {}),
        ("{}/x-{{:03}}.tar", {"labelled": False}),
        ("in1k-{}-{{}}.tar", {"tree": True}),
    ],
)
def test_names_of_shards_or_folders_are_splits(
    name: str, options: dict[str, Any], photos: Path, tmp_path: Path
) -> None:
    root = tmp_path / "split"
    for split in ("train", "validation"):
        (root / split).mkdir(parents=True)
    for number, path in enumerate(sorted(photos.rglob("*.*g"))):
        top, *below = path.relative_to(photos).parts
        below = ["leaf", below[-1]] if options.get("tree") else below
        place = root.joinpath("validation" if number % 4 == 0 else "train", top, *below)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    for split in ("train", "validation"):
        pack(root / split, str(tmp_path / "shards" / name.format(split)))
    same(load(root, **options), load(tmp_path / "shards", **options))
    if not options:
        model = ModelClasses(names=["10", "a-b", "cat"], multilabel=False)
        held = load(tmp_path / "shards", model=model).val
        assert held is not None and set(held.names) == set(load(root).val.names)  # pyright: ignore


def batches(data: ImageData, rank: int, world: int) -> list[tuple[torch.Tensor, ...]]:
    trainer = SimpleNamespace(global_rank=rank, world_size=world, num_devices=world)
    trainer.strategy = SimpleNamespace(root_device=torch.device("cpu"))
    trainer.accumulate_grad_batches, trainer.state = 1, SimpleNamespace(fn=None)
    data.trainer = trainer  # pyright: ignore
    loader = data.train_dataloader()
    return [*loader, *loader]


def test_training_draws_the_same_pixels_on_any_number_of_processes(
    photos: Path, tmp_path: Path
) -> None:
    world = 4
    pack(photos, f"{tmp_path}/shards/{{:03}}.tar")
    for consumed in (0, 4 * world):  # from the start, and after an interruption
        for rank in range(world):
            one, other = (
                image_data(root=str(root), image_size=16, batch_size=2, num_workers=int(rank == 1))
                for root in (photos, tmp_path / "shards")
            )
            for data in (one, other):
                data.load_state_dict({"consumed_samples": consumed})
            pairs = zip(batches(one, rank, world), batches(other, rank, world), strict=True)
            assert all(torch.equal(a, b) for two in pairs for a, b in zip(*two, strict=True))


def test_a_fit_ends_with_the_weights_of_one_on_the_folder(
    vit: Vit, photos: Path, tmp_path: Path
) -> None:
    pack(photos, f"{tmp_path}/shards/{{:03}}.tar")
    for name, data in (("a", photos), ("b", "shards/{000..002}.tar")):
        steps = ("--pretrained", "null", "--steps", "6", "--run_dir", name)
        done = vit("fit", "-c", "finetune", "--data", data, *TINY, *steps)
        assert done.status == 0, done.err
    one, other = (load_file(f"{run}/model/model.safetensors") for run in "ab")
    assert all(torch.equal(one[name], other[name]) for name in one)
    scores = [vit("test", run, "--json").out for run in "ab"]
    assert json.loads(scores[0]) == json.loads(scores[1])
    assert vit("predict", "b").status == 0 and "a-b/" in Path("b/predictions_test.csv").read_text()
    same_place = vit("test", "b", "--data.root", "shards", "--json")
    assert same_place.status == 0, same_place.err


PIXELS = encoded(scene(0, 20, 20))


def test_numerals_are_numbers_of_the_list_or_its_names_and_not_both(tmp_path: Path) -> None:
    root = tmp_path / "set"
    members: dict[str, bytes | str] = {}
    for number in range(9):
        members |= {f"{number}.cls": str(number % 3 + 1), f"{number}.jpg": PIXELS}
    tar(root / "x-0.tar", members)
    (root / "classes.txt").write_text("1\n2\n3")
    with pytest.raises(UserError, match=r"label '3'; classes\.txt has numbers 0 to 2"):
        load(root, WHOLE)
    (root / "classes.txt").write_text("10\n20\n30")
    with pytest.raises(UserError, match=r"label '3'; classes\.txt has numbers 0 to 2"):
        load(root, WHOLE)
    members |= {f"{number}.cls": str(10 * (number % 3 + 1)) for number in range(9)}
    tar(root / "x-0.tar", members)
    splits = load(root, WHOLE)
    assert splits.classes == ["10", "20", "30"] and splits.class_counts == [3, 3, 3]


def test_labels_are_those_of_the_samples(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {"a/._0.jpg": b"macOS", "readme.txt": "text"}
    for number in range(12):
        key = f"./{number:04}"
        members |= {f"{key}.big.jpg": PIXELS, f"{key}.json": "{}", f"{key}.txt": "a caption"}
        members[f"{key}.cls"] = f" {number % 2 + 9}\n" if number < 4 else str(number % 3)
    root = tmp_path / "set"
    with tarfile.open(tar(root / "x-0.tar", members), "a") as file:
        link = tarfile.TarInfo("a/link.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "0001.big.jpg"
        file.addfile(link)
    splits = load(root, WHOLE)
    assert splits.classes == ["0", "1", "2", "9", "10"]
    assert splits.class_counts == [2, 3, 3, 2, 2]
    assert list(splits.train.names)[-1] == "0003.big.jpg"
    assert splits.notes == [f"{root}: left out: 13 txt, 12 json, 1 hidden, 1 links"]
    names = ["ape", "bee", "crane", "crane", *"efghij", "kiwi"]
    (root / "classes.txt").write_text("\n".join(names))
    named = load(root, WHOLE)
    assert named.classes[:4] == ["ape", "bee", "crane (2)", "crane (3)"]
    assert named.class_counts == [2, 3, 3, 0, 0, 0, 0, 0, 0, 2, 2]
    assert list(named.train.names) == list(splits.train.names)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a/1.cls": "3"}, "x-0.tar: sample a/1 has a label and 0 images; it must have one of"),
        ({"1.cls": "3", "1.jpg": PIXELS, "a/2.jpg": PIXELS}, "a/2 has no label and 1 images"),
        ({"1.cls": "3", "1.jpg": PIXELS, "1.mask.png": PIXELS}, "1 has a label and 2 images"),
        ({"1.cls": " ", "1.jpg": PIXELS}, "1.cls holds no label in UTF-8; pack it again"),
        ({"1.cls": b"\xff", "1.jpg": PIXELS}, "1.cls holds no label in UTF-8"),
        ({"1.jpg": PIXELS}, "has 1 images but no class folders .*.cls files"),
        (
            {"a/1.jpg": PIXELS, "./a/1.jpg": PIXELS},
            "a/1.jpg is in it twice; pack it again",
        ),
        ({"a/1.txt": ""}, "no images in .*; there: left out: 1 txt"),
        ({f"top/{c}/{c}.jpg": PIXELS for c in "ab"}, "one class only, 'top'; two are needed"),
        (
            {f"{s}/{c}/1.jpg": PIXELS for c in "ab" for s in SPLITS},
            "folders test, train, val; ",
        ),
    ],
)
def test_shards_that_cannot_be_used_are_one_line(
    members: dict[str, bytes | str], message: str, tmp_path: Path
) -> None:
    tar(tmp_path / "x-0.tar", members)
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_damage_is_named_and_never_trained_on(photos: Path, tmp_path: Path) -> None:
    pack(photos, f"{tmp_path}/shards/{{:03}}.tar")
    make_indices([str(path) for path in sorted(tmp_path.glob("shards/*.tar"))])
    whole = load(tmp_path / "shards").train.items
    assert isinstance(whole, ShardImages)
    place = whole.places[5]
    broken = Path(whole.shards[whole.shard_of[place]])
    time = os.stat(broken).st_mtime_ns
    with broken.open("rb+") as file:
        file.seek(int(whole.offsets[place] + whole.sizes[place] // 2))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(broken, ns=(time, time))  # a disk that rots
    found = load(tmp_path / "shards").train
    with pytest.raises(UserError, match=rf"{broken}: {found.names[5]}: damaged, or changed"):
        found.items[5]
    strict, lenient = (
        image_data(root=str(tmp_path / "shards"), image_size=16, on_error=how, num_workers=2)
        for how in ("error", "skip")
    )
    with pytest.raises(UserError, match=rf"^{broken}: {found.names[5]}"):
        list(strict.evaluation_loader("train"))
    indices = torch.cat([batch[2] for batch in lenient.evaluation_loader("train")]).tolist()
    assert 5 not in indices and len(indices) == len(found) - 1
    assert lenient.skipped_images("train") == 1
    with broken.open("ab") as file:
        file.write(b"more")
    os.utime(broken, ns=(time, time))
    with pytest.raises(UserError, match=rf"{broken} .* behind its"):
        load(tmp_path / "shards")
    broken.write_bytes(broken.read_bytes()[:9_000])
    with pytest.raises(UserError, match=str(broken)):
        make_indices([str(broken)])
    broken.unlink()
    with pytest.raises(UserError, match=r"1 of 3 shards are missing, such as .*\.tar"):
        find_shards(str(tmp_path / "shards" / "{000..002}.tar"))


@pytest.mark.parametrize("damage", [b"", b"\1" * 512, bytes(1024)])
def test_a_shard_that_ends_too_soon_is_refused(damage: bytes, tmp_path: Path) -> None:
    path = tar(tmp_path / "x-0.tar", {f"{name}/1.jpg": PIXELS for name in "abcd"})
    with tarfile.open(path) as file:
        third = file.getmembers()[2].offset
    whole = path.read_bytes()
    path.write_bytes(whole[:third] + damage + whole[third + 512 :] * bool(damage))
    with tarfile.open(path) as file:
        assert file.getnames() == ["a/1.jpg", "b/1.jpg"], "tarfile does not mind"
    with pytest.raises(UserError, match="it is cut short, or goes on behind its end"):
        load(tmp_path)


def swapped(path: Path, turn: int) -> Path:
    """A shard of four images of the classes 0 and 1; the first in order is `turn`.jpg."""
    labels = {f"{n}.cls": str((n + turn) % 2) for n in range(4)}
    return tar(path, {f"{n}.jpg": PIXELS for n in range(4)} | labels)


@pytest.mark.parametrize("after", [1, -1, -(10**12)], ids=["later", "earlier", "old"])
def test_a_shard_with_other_labels_is_read_again_whatever_its_time(
    after: int, tmp_path: Path
) -> None:
    path = swapped(tmp_path / "set/0.tar", 0)
    first = os.stat(path).st_mtime_ns
    for turn in range(3):
        swapped(path, turn % 2)
        time = first + turn * after  # as `rsync -t` copies a file of the same size
        os.utime(path, ns=(time, time))
        for _ in range(2):
            assert load(path.parent, WHOLE).train.names.name(0) == f"{turn % 2}.jpg"


def test_an_index_that_fits_is_taken_beside_the_shard_or_in_the_cache(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = swapped(tmp_path / "set/0.tar", 1)
    make_indices([str(path)])
    beside = Path(f"{path}{SUFFIX}").read_bytes()
    swapped(path, 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *args: False)
        assert load(path.parent, WHOLE).train.names.name(0) == "0.jpg"
    assert Path(f"{path}{SUFFIX}").read_bytes() == beside, "its folder is read-only"
    assert len(list(own_cache.glob(f"vit/shards/*{SUFFIX}"))) == 1
    monkeypatch.setattr(shards, "index_of", None)
    assert load(path.parent, WHOLE).train.names.name(0) == "0.jpg"


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("uploaded", [True, False], ids=["index beside it", "no index"])
def test_another_shard_at_the_same_address_is_read_again(
    tagged: bool, uploaded: bool, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranges, "tagged", tagged)
    for turn in range(2):
        path = swapped(tmp_path / "0.tar", turn)
        if not tagged:  # the size alone
            with path.open("ab") as file:
                file.write(bytes(512 * turn))
        if uploaded:
            make_indices([str(path)])
        Ranges.asked.clear()
        for _ in range(2):
            images = load(f"{server}/0.tar", WHOLE).train
            assert images.names.name(0) == f"{turn}.jpg"
            assert images.items[0] == PIXELS
        assert Ranges.asked.count(("0.tar", False)) == 1  # its copy, or the one read


def test_indices_are_read_in_threads_while_garbage_is_collected(tmp_path: Path) -> None:
    """Threads that parse headers may be switched within a parse, by callbacks of the collector."""
    paths = [str(tar(tmp_path / f"x-{n}.tar", {"a/1.jpg": PIXELS})) for n in range(64)]
    make_indices(paths)
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(lambda *_: sum(range(50)))
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    try:
        assert all(index is not None for _ in range(3) for index in shards.read_indices(paths))
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def test_an_index_of_another_form_is_made_again(tmp_path: Path) -> None:
    path = tar(tmp_path / "set/0.tar", {f"{n}.jpg": PIXELS for n in range(4)} | LABELS)
    labels = load(path.parent, WHOLE).train.labels.tolist()
    file = Path(f"{path}{SUFFIX}")
    with np.load(file) as stored:
        index = dict(stored)
    for name, value in (
        ("offset", index["offset"][:3]), ("size", index["size"].astype("f8")),
        ("label", np.array(3)), ("digest", None),
    ):  # fmt: skip
        changed = {k: v for k, v in {**index, name: value}.items() if v is not None}
        with file.open("wb") as stream:
            np.savez(stream, **changed)
        assert read_index(str(path)) is None
        assert load(path.parent, WHOLE).train.labels.tolist() == labels
        assert read_index(str(path)) is not None


LABELS = {f"{n}.cls": str(n % 2) for n in range(4)}


class Ranges(BaseHTTPRequestHandler):
    """Files below `root`, whole or a range; connections are kept."""

    protocol_version = "HTTP/1.1"
    root: Path
    asked: list[tuple[str, bool]]
    failing: int
    """Requests that are answered by an error, once `answering` is set."""
    answering: threading.Event
    in_parts, tagged = True, False

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, wanted = self.root / self.path.lstrip("/"), self.headers.get("Range")
        wanted = wanted if self.in_parts else None
        if self.command == "GET":
            self.asked.append((path.name, wanted is not None))
            if self.failing:
                Ranges.failing -= 1
                self.answering.wait()
                return self.send_error(500)
        if not path.is_file():
            return self.send_error(404)
        content = path.read_bytes()
        total = len(content)
        first, last = 0, total - 1
        if wanted is not None:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
            assert found is not None
            first, last = int(found[1]), int(found[2])
        self.send_response(200 if wanted is None else 206)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        if self.tagged:
            self.send_header("ETag", f'"{zlib.crc32(content)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[first : last + 1])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path):
    Ranges.root, Ranges.asked, Ranges.failing = tmp_path, [], 0
    Ranges.answering = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Ranges.answering.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("gib", ["", "0"])
def test_shards_are_read_from_a_server_whole_or_by_ranges(
    gib: str, server: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(photos, f"{tmp_path}/shards/{{:03}}.tar")
    address = f"{server}/shards/{{000..002}}.tar"
    monkeypatch.setenv("VIT_SHARD_CACHE", gib)
    make_indices(expanded(address))
    assert [part for name, part in Ranges.asked if name.endswith(".tar")] == [False] * 3
    if gib:  # too small for all copies
        for copy in map(addresses.in_cache, expanded(address)):
            copy.unlink()
        with monkeypatch.context() as patched:
            patched.setattr(Ranges, "in_parts", False)
            with pytest.raises(UserError, match="does not answer in parts") as caught:
                load(address).train.items[0]
        assert type(caught.value) is UserError, "which is not skipped as an image is"
    Ranges.asked.clear()
    same(load(photos), load(address))
    one, other = (
        image_data(root=str(root), image_size=16, batch_size=4, num_workers=2)
        for root in (photos, address)
    )
    pairs = zip(batches(one, 0, 1), batches(other, 0, 1), strict=True)
    assert all(torch.equal(a, b) for two in pairs for a, b in zip(*two, strict=True))
    ranged = {part for name, part in Ranges.asked if name.endswith(".tar")}
    assert ranged == ({True} if gib else set())


def test_an_index_beside_a_remote_shard_saves_reading_it(
    server: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(photos, f"{tmp_path}/shards/{{:03}}.tar")
    make_indices(find_shards(str(tmp_path / "shards"))[""])
    monkeypatch.setenv("VIT_SHARD_CACHE", "0")
    load(f"{server}/shards/{{000..002}}.tar")
    assert not [name for name, part in Ranges.asked if name.endswith(".tar")]
    with pytest.raises(UserError, match=r"http.*/003\.tar cannot be read .*: not found"):
        load(f"{server}/shards/{{000..003}}.tar")


def test_a_server_that_fails_is_asked_three_times_and_a_silent_one_is_left(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "_PAUSES", (0, 0))
    path = tar(tmp_path / "x.tar", {"a/1.jpg": PIXELS})
    Ranges.answering.set()
    Ranges.failing = 2
    assert addresses.local_copy(f"{server}/x.tar").read_bytes() == path.read_bytes()
    Ranges.failing = 3
    with pytest.raises(UserError, match=r"y\.tar cannot be read: 500, message='Internal"):
        addresses.local_copy(f"{server}/y.tar")
    Ranges.answering.clear()
    Ranges.failing = 3
    monkeypatch.setattr(addresses, "_SILENCE", 0.2)
    with pytest.raises(UserError, match=r"y\.tar cannot be read: FSTimeoutError"):
        addresses.local_copy(f"{server}/y.tar")


def test_a_request_after_workers_had_theirs_is_answered(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "_SILENCE", 20)
    (tmp_path / "x.tar").write_bytes(b"x")

    def read(_: object) -> bytes:
        with addresses.reaching(f"{server}/x.tar") as (files, place):
            content = files.cat_file(place)
        gc.collect()  # when it is that fsspec closes the parent's connections is chance
        return content

    assert [read(0), *range_loader(read, 2, 1, num_workers=1), read(0)] == [b"x"] * 4


def test_old_copies_make_room(
    server: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(photos, f"{tmp_path}/{{:03}}.tar")
    size = max(path.stat().st_size for path in tmp_path.glob("*.tar"))
    monkeypatch.setattr(addresses, "_GRACE", -1)
    monkeypatch.setattr(addresses, "cache_limit", lambda: 2.5 * size)
    copies = [addresses.local_copy(f"{server}/00{number}.tar") for number in (0, 1)]
    for copy, time in zip(copies, (2, 1), strict=True):
        os.utime(copy, (time, time))  # the first was opened last
    orphan = copies[0].parent / ".005.1a2b3c4d.tar"  # of a killed process
    orphan.write_bytes(bytes(int(size / 4)))
    os.utime(orphan, (0, 0))
    newest = addresses.local_copy(f"{server}/002.tar")
    assert [path.exists() for path in (*copies, newest, orphan)] == [True, False, True, False]


@pytest.mark.parametrize("text", ["a{08..11}.tar", "{a,b}-{0..2}", "{t-{0..1},v-{5..6}}", "plain"])
def test_braces_are_those_of_the_shell(text: str) -> None:
    shell = subprocess.run(["bash", "-c", f"echo {text}"], capture_output=True, text=True)
    assert sorted(expanded(text)) == sorted(shell.stdout.split())


def test_commands_take_shards(vit: Vit, photos: Path, tmp_path: Path) -> None:
    pack(photos, f"{tmp_path}/shards/{{:03}}.tar")
    done = vit("data", "index", "shards/000.tar", "shards/001.tar")
    assert done.out == "shards: 2, indexed now: 2\n", done.err
    assert vit("data", "index", "shards").out == "shards: 3, indexed now: 1\n"
    assert len(list(Path("shards").glob(f"*{SUFFIX}"))) == 3
    answers = [
        json.loads(vit("data", "check", root, "--num-workers", "0", "--json").out)["findings"]
        for root in (photos, "shards")
    ]
    assert answers[0] == answers[1] and answers[0]
    for words, message in [
        (("fit", "--data", "shards/000.tar", "shards/001.tar"), "001.tar.* is not an option"),
        (("fit", "--data", "s3://bucket/train-{000..127}.tar"), "s3fs"),
        (("fit", "--data.root", "nothing://bucket/train.tar"), "Protocol not known: nothing"),
        (("fit", "--data", "shards/{003..004}.tar"), "no folder or CSV"),
        (("fit", "--data.root", "shards/{003..004}.tar"), "does not exist"),
        (("data", "check", "shards", "--fix", "x.csv"), "--fix lists files"),
        (("data", "index", str(photos)), "has no shards"),
        (("transfer", saved(tmp_path / "m"), "--data", "shards", "--steps", "1"), "in shards"),
    ]:
        done = vit(*words)
        assert done.status == 2 and done.err.splitlines()[-1].startswith("vit: "), (words, done)
        assert re.search(message, done.err), done.err


def test_an_address_of_a_folder_is_that_of_its_shards() -> None:
    names = [
        f"memory:///set/{name}.tar" for name in ("train-0", "train-1", "val-00-of-01", "test/x")
    ]
    fsspec.filesystem("memory").pipe(dict.fromkeys(names, b""))
    shards = {"train": names[:2], "val": names[2:3], "test": names[3:]}
    assert find_shards("memory:///set") == shards
    assert find_shards("memory:///set/train-*.tar") == {"train": names[:2]}
    with pytest.raises(UserError, match="set has val, valid"):
        words_by_split("set", {"valid": names, "val": names})
    with pytest.raises(UserError, match="memory:///none"):
        load("memory:///none")
