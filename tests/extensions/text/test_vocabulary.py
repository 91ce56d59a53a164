"""CLIP's real vocabulary, of open_clip's package: tokens of 200 texts in both homes."""

import gzip
import json
import unicodedata
from pathlib import Path

import pytest
import torch

import vit
from tests.extensions.text.repositories import END, PATCH, SIDE, START, scattered
from vit.extensions.text.tokenizing import TextTokens
from vit.extensions.text.tower import TextConfig
from vit.models.config import ViTConfig

open_clip = pytest.importorskip("open_clip")
transformers = pytest.importorskip("transformers")

CONTEXT = 77
WORDS = """tench goldfish great white shark cock hen ostrich brambling goldfinch house finch junco
robin bulbul jay magpie chickadee water ouzel kite bald eagle vulture owl salamander newt eft
axolotl bullfrog tree frog tailed loggerhead leatherback mud turtle terrapin box iguana chameleon
whiptail agama lizard monster crocodile alligator triceratops snake viper python cobra mamba
""".split()
PLAIN = [
    "", "a", "A Photo of a CAT.", "it's they're we've I'll I'd don't WON'T", "2026-11-26 12:00", "$5.99!",
    "a\tb\nc", "  spaces   everywhere  ", "e-mail@example.com", "C++ & C#", "#hashtag", "100%", "1/2",
    "snake_case", "x" * 300, "word " * 100, "?!?!", "...", "(a) [b] {c}", "black & white", "<b>bold</b>",
]  # fmt: skip
LETTERS = [
    "café", "naïve", "Straße", "ÅNGSTRÖM", "日本語", "中文 字符", "русский", "ελληνικά Σ", "עברית",
    "😀 smile", "👩‍👩‍👧", "½ ¼", "①②", "été à la plage", "El Niño", "São Paulo", "Łódź", "İstanbul",
]  # fmt: skip
REPAIRED = [
    "&amp;amp; more", "&lt;tag&gt;", "&eacute;t&eacute;", "it\u2019s \u201cquoted\u201d", "ﬁne ﬂow",
    "schÃ¶n", "\u2026 dots", "Ｆｕｌｌ ｗｉｄｔｈ", "x\u00a0y", "cafe\u0301 au lait", "a\u200bb",
]  # fmt: skip
"""Texts that open_clip repairs, and transformers takes as they are."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vocab.json and merges.txt as in CLIP's repositories."""
    home = tmp_path_factory.mktemp("clip")
    path = Path(open_clip.__file__).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    letters = [*open_clip.tokenizer.bytes_to_unicode().values()]
    tokens = [*letters, *(f"{each}</w>" for each in letters)]
    tokens += ["".join(line.split()) for line in lines] + [START, END]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    assert vocabulary[START] == 49406 and len(vocabulary) == 49408
    (home / "vocab.json").write_text(json.dumps(vocabulary))
    (home / "merges.txt").write_text("\n".join(["#version: 0.2", *lines]) + "\n")
    return home


def texts() -> list[str]:
    """200 texts, of which the last are those that homes read in their own ways."""
    counted = [f"a photo of {n} {WORDS[n % len(WORDS)]}s, no. {n * n}" for n in range(150)]
    every = [*PLAIN, *LETTERS, *REPAIRED]
    return [*counted[: 200 - len(every)], *every]


def tokens(folder: Path, clean: str | None) -> TextTokens:
    config = TextConfig(layers=ViTConfig(), vocabulary=49408, context=CONTEXT, end=49407)
    return TextTokens(folder, config, clean)


def allowed(every: list[str]) -> list[str]:
    """Texts that are not refused: some have no letter, or a control character."""
    return [text for text in every if text.strip() and text.isprintable()]


def test_200_texts_have_the_tokens_of_transformers(folder: Path) -> None:
    every = texts()
    assert len(every) == 200
    theirs = transformers.CLIPTokenizer.from_pretrained(folder)
    options = {"padding": "max_length", "max_length": CONTEXT, "truncation": True}
    for text in allowed(every):
        [ids] = tokens_of(folder, None, text)
        assert ids == theirs(text, **options).input_ids, text


def test_200_texts_have_the_tokens_of_open_clip(folder: Path) -> None:
    theirs = open_clip.SimpleTokenizer()
    differing = []
    for text in texts():
        if text.strip() and text.replace("\xa0", " ").isprintable():
            [ids] = tokens_of(folder, "lower", text)
            if ids != theirs(text)[0].tolist():
                differing.append(text)
    assert differing == []


def tokens_of(folder: Path, clean: str | None, text: str) -> list[list[int]]:
    if (folder, clean) not in MADE:
        MADE[folder, clean] = tokens(folder, clean)
    return MADE[folder, clean]([text]).tolist()


MADE: dict[tuple[Path, str | None], TextTokens] = {}


def test_the_homes_differ_in_the_texts_that_open_clip_repairs(folder: Path) -> None:
    """The list in docs/names.md."""
    differing = []
    for text in allowed(texts()):
        [ours], [other] = (tokens_of(folder, clean, text) for clean in (None, "lower"))
        if ours[: ours.index(49407)] != other[: other.index(49407)]:
            differing.append(text)
    assert [each for each in REPAIRED if each.isprintable() and each not in differing] == []
    print(differing)
