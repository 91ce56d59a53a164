"""CLIP's real vocabulary, of open_clip's package: tokens of 200 texts in both homes."""

import gzip
import json
from pathlib import Path

import pytest

from tests.extensions.text.repositories import END, START
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
    "", "a", "A Photo of a CAT.", "it's they're we've I'll I'd don't WON'T", "2026-11-26 12:00",
    "a\tb\nc", "  spaces   everywhere  ", "e-mail@example.com", "C++ & C#", "#hashtag", "100%",
    "snake_case", "x" * 300, "word " * 100, "?!?!", "...", "(a) [b] {c}", "black & white",
    "<b>bold</b>", "$5.99!", "1/2",
]  # fmt: skip
LETTERS = [
    "café", "naïve", "Straße", "ÅNGSTRÖM", "日本語", "中文 字符", "русский", "ελληνικά Σ", "עברית",
    "😀 smile", "👩\u200d👩\u200d👧", "½ ¼", "①②", "été à la plage", "El Niño", "São Paulo", "Łódź",
    "İstanbul", "\u2026 dots", "cafe\u0301 au lait",
]  # fmt: skip
REPAIRED = [
    "&amp;amp; more", "&lt;tag&gt;", "&eacute;t&eacute;", "it\u2019s \u201cquoted\u201d",
    "\ufb01ne \ufb02ow", "schÃ¶n", "\uff26\uff55\uff4c\uff4c",
]  # fmt: skip
"""Texts that open_clip repairs, and transformers takes as they are."""
REFUSED = ["x\u00a0y", "a\u200bb"]


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


@pytest.fixture(scope="module")
def homes(folder: Path) -> dict[str | None, TextTokens]:
    """Our tokenizer as of transformers (None), and as of open_clip."""
    config = TextConfig(layers=ViTConfig(), vocabulary=49408, context=CONTEXT, end=49407)
    return {clean: TextTokens(folder, config, clean) for clean in (None, "lower")}


def texts() -> list[str]:
    """200 texts without those that are refused: no letters, or a control character."""
    counted = [f"a photo of {n} {WORDS[n % len(WORDS)]}s, no. {n * n}" for n in range(200)]
    every = [*PLAIN, *LETTERS, *REPAIRED, *REFUSED]
    every += counted[: 200 - len(every)]
    answered = [text for text in every if text.strip() and text.isprintable()]
    assert len(every) == 200 and len(answered) == 195
    return answered


def test_tokens_are_those_of_transformers(
    folder: Path, homes: dict[str | None, TextTokens]
) -> None:
    theirs = transformers.CLIPTokenizer.from_pretrained(folder)
    expected = theirs(texts(), padding="max_length", max_length=CONTEXT, truncation=True)
    assert homes[None](texts()).tolist() == expected.input_ids


def test_tokens_are_those_of_open_clip(homes: dict[str | None, TextTokens]) -> None:
    assert homes["lower"](texts()).tolist() == open_clip.SimpleTokenizer()(texts()).tolist()


def test_the_homes_differ_in_the_texts_that_open_clip_repairs(
    homes: dict[str | None, TextTokens],
) -> None:
    """The list in docs/names.md."""
    ours, other = (homes[clean](texts()).tolist() for clean in (None, "lower"))
    pairs = zip(texts(), ours, other, strict=True)
    differing = [t for t, a, b in pairs if a[: a.index(49407)] != b[: b.index(49407)]]
    assert differing == REPAIRED
