"""Faults that are planted into small folders, one of each kind, and the manifest without them."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageFilter

from tests.pictures import copied, encoded, scene
from vit.data.find import find_splits
from vit.data.settings import Reading, Splitting
from vit.errors import UserError
from vit.extensions.datacheck import check
from vit.extensions.datacheck.check import (
    KINDS,
    Finding,
    Pictures,
    file_findings,
    write_findings,
    write_fixed,
)

WHOLE = Splitting(val_fraction=0, test_fraction=0)


def turned(picture: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture, exif=exif)


__all__ = ["copied"]

FAULTS: dict[str, tuple[str, Callable[[Image.Image], bytes]]] = {
    "unreadable": ("jpg", lambda picture: b"<html>not found</html>"),
    "truncated": ("jpg", lambda picture: encoded(picture)[:-3000]),
    "blank": ("jpg", lambda picture: encoded(Image.new("RGB", (300, 280), "black"))),
    "blurred": ("jpg", lambda picture: encoded(picture.filter(ImageFilter.GaussianBlur(9)))),
    "tiny": ("png", lambda picture: encoded(picture.resize((40, 31)), "PNG")),
    "huge": ("jpg", lambda picture: encoded(picture.resize((900, 840)))),
    "extension": ("jpg", lambda picture: encoded(picture, "PNG")),
    "rotated": ("jpg", turned),
}


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A folder of good pictures, one of each fault, and classes that need a look."""
    root = tmp_path / "faulty"
    for number, folder in enumerate(["Cat", "cats", *["dog"] * 13]):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{number}.jpg").write_bytes(encoded(scene(number)))
    for number, (kind, (suffix, make)) in enumerate(FAULTS.items(), start=50):
        (root / "dog" / f"{kind}.{suffix}").write_bytes(make(scene(number)))
    return root


def found(root: Path, num_workers: int = 0) -> tuple[Pictures, list[Finding]]:
    pictures = Pictures(str(root))
    pictures.read(num_workers)
    return pictures, list(file_findings(pictures))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_fault_is_found_and_nothing_else(
    faulty: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "HUGE", 700_000)
    monkeypatch.setattr(check, "_BATCH", 5)
    pictures, findings = found(faulty, num_workers)
    named = {(each.kind, each.subject) for each in findings}
    expected = {(kind, f"dog/{kind}.{suffix}") for kind, (suffix, _) in FAULTS.items()}
    assert named == {*expected, ("few", "Cat"), ("few", "cats"), ("few", "dog"), ("names", "Cat")}
    assert pictures.facts["width"][0] == 300 and pictures.facts["height"][0] == 280
    details = {each.kind: each.detail for each in findings}
    assert details["unreadable"] == "a web page (HTML), not an image; replace or delete it"
    few = {each.subject: each.detail for each in findings if each.kind == "few"}
    assert few["dog"] == "19 images"  # of 21, two of which cannot be read
    assert details["extension"] == "PNG, 300 x 280 pixels" and details["names"] == "cats"
    assert set(details) <= set(KINDS)


def test_the_fixed_manifest_is_the_rest_and_its_labels_change_only_if_asked(
    copied: Path, tmp_path: Path
) -> None:
    (copied / "train" / "a" / "broken.jpg").write_bytes(b"")
    pictures, findings = found(copied)
    names = list(pictures.names)
    for name in ("train/a/same.jpg", "train/b/v.jpg", "train/a/again.jpg", "train/b/smaller.png"):
        findings.append(Finding(kind="copy", subject=name, image=names.index(name)))
    pair = {"image": names.index("train/b/v.jpg"), "other": names.index("train/a/00.jpg")}
    findings.append(Finding(kind="conflict", subject="train/b/v.jpg", **pair))
    for at, (name, certainty) in enumerate({"train/a/02.jpg": 0.95, "test/b/15.jpg": 0.6}.items()):
        doubt = {"suggested": "ba"[at], "certainty": certainty, "image": names.index(name)}
        findings.append(Finding(kind="doubt", subject=name, **doubt))
    less_sure = {"suggested": "a", "certainty": 0.91, "image": names.index("train/a/02.jpg")}
    findings.append(Finding(kind="doubt", subject="train/a/02.jpg", **less_sure))
    place = tmp_path / "elsewhere" / "fixed.csv"
    for relabel, label in ((None, "a"), (0.9, "b")):
        lacking, changed = write_fixed(place, pictures, findings, relabel)
        assert (lacking, changed) == (5, int(label == "b"))
        assert "a/00.jpg,a,train,b\n" in place.read_text()  # the label of the copy left out
        splits = find_splits(None, str(place), Reading(cut=WHOLE))
        assert splits.val and splits.test
        assert [len(splits.train), len(splits.val), len(splits.test)] == [8, 5, 4]
        labels = dict(zip(splits.train.names, splits.train.labels.tolist(), strict=True))
        assert splits.classes[labels["../copied/train/a/02.jpg"]] == label
    write_findings(tmp_path / "findings.csv", pictures, findings[:-1])
    with (tmp_path / "findings.csv").open(newline="") as stream:
        last = list(csv.DictReader(stream))[-1]
    assert (last["finding"], last["split"], last["label"]) == ("doubt", "test", "b")
    assert (last["suggested"], last["certainty"]) == ("a", "0.6")
    # Edited by hand: a label that no row of train has.
    place.write_text(place.read_text().replace("13.jpg,b,test", "13.jpg,bb,test"))
    with pytest.raises(UserError, match=r"lacks: 'bb'"):
        find_splits(None, str(place), Reading(cut=WHOLE))


def test_several_labels_and_none_are_read(copied: Path, tmp_path: Path) -> None:
    listing = tmp_path / "list.csv"
    listing.write_text("path,label\ncopied/val/a/08.jpg,x|y\ncopied/val/b/09.jpg,\n")
    several = Pictures(str(listing))
    assert [several.label(0), several.label(1)] == ["x|y", ""]
    none = Pictures(str(copied / "val" / "a"))
    assert not none.classes and none.label(0) == ""
    with pytest.raises(UserError, match="has one class only"):
        (tmp_path / "one" / "a").mkdir(parents=True)
        (tmp_path / "one" / "a" / "1.jpg").write_bytes(encoded(scene(1)))
        Pictures(str(tmp_path / "one"))
