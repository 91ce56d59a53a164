"""Tokens of texts, by the tokenizer in a model's repository and the cleaning of its home.

A tokenizer is data beside the weights (tokenizer.json, or vocab.json and merges.txt); none is in
this package. Sources: transformers 5.24, models/{clip,siglip2}/tokenization_*.py; open_clip 3.3,
tokenizer.py.
"""

import html
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.console import note
from vit.errors import MESSAGE, UserError, needed, shorten
from vit.extensions.licences.page import TOKENIZER, as_row, of_page, source_of
from vit.extensions.text.tower import TextConfig
from vit.models.fields import JsonObject, is_object
from vit.weights.weight_file import read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
"""Words of CLIP's texts (openai/CLIP, simple_tokenizer.py)."""
_GEMMA = ("Gemma", "Siglip2")
"""Beginnings of the classes of Gemma's tokenizer."""
GEMMA_TOKENS = 256_000
GEMMA_TERMS = "https://ai.google.dev/gemma/terms"
_START, _END, _UNMERGED = "<|startoftext|>", "<|endoftext|>", 2 * 256 + 2


class TextTokens:
    """Texts -> tokens of a text tower.

    `clean` is that of `Texts`. UserError for a folder without the tokenizer of the tower.
    """

    def __init__(self, folder: Path, config: TextConfig, clean: str | None) -> None:
        described = read_json(folder / "tokenizer_config.json")
        kind = str(described.get("tokenizer_class", ""))
        if kind.startswith("SiglipTokenizer"):
            raise UserError(f"{folder}: SigLIP's first tokenizer (spiece.model) is not read here")
        is_gemma = kind.startswith(_GEMMA) or config.vocabulary == GEMMA_TOKENS
        self.licences = of_page(folder, TOKENIZER)
        if is_gemma:  # whatever the repository says of its weights
            self.licences = [as_row(TOKENIZER, source_of(folder), "gemma", GEMMA_TERMS)]
        self._folder, self._config, self._clean = folder, config, clean
        self._tokenizer = _opened(folder, lower=config.end is None)
        specials = self._tokenizer.get_added_tokens_decoder().values()
        self._specials = [token.content for token in specials if token.special]
        empty, upper, small = (self._tokenizer.encode(text).ids for text in ("", "A", "a"))
        cased = clean is None and upper != small and self._tokenizer.token_to_id(_START) is not None
        if cased or (config.end is not None and len(empty) < 2):  # MetaCLIP 2's may be cased
            raise UserError(f"{folder}: the tokenizer tells A from a, or starts no text: damaged?")
        self._end = empty[-1] if empty else -1
        self._tokenizer.enable_truncation(config.context)
        self._tokenizer.enable_padding(
            length=config.context,
            direction=_side(described, kind),
            pad_id=0 if clean == "lower" else self._pad_id(described),
        )

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Ids `b n` of the tower's context length. UserError for a text that is none."""
        cleaned = [text if self._clean is None else clean_text(text, self._clean) for text in texts]
        for text in cleaned:
            if not text.strip() or not text.isprintable():
                raise UserError(f"{shorten(repr(text))} is no text of printable letters")
            if special := [word for word in self._specials if word in text]:
                raise UserError(
                    f"{shorten(repr(text))} holds {special[0]}, a sign of the tokenizer"
                )
        encoded = [self._tokenizer.encode(text) for text in cleaned]
        if cut := sum(bool(each.overflowing) for each in encoded):
            note(f"{cut:,} texts are longer than {self._config.context} tokens, and are cut")
        ids = torch.tensor([each.ids for each in encoded])
        self._check(ids)
        return ids

    def _check(self, ids: Tensor) -> None:
        """UserError for ids that the tower would read at another place than the text's end."""
        end, rows = self._config.end, self._config.vocabulary
        if int(ids.max()) >= rows:
            raise UserError(
                f"the tokenizer in {self._folder} has the id {int(ids.max()):,}, and the tower "
                f"{rows:,} tokens: it is another model's"
            )
        last = ids.max(1).values if end == -1 else ids.new_full((len(ids),), end or 0)
        if end is not None and not (((ids == self._end).any(1)) & (last == self._end)).all():
            raise UserError(
                f"the tokenizer in {self._folder} ends a text with the id {self._end}, and the "
                f"tower reads it at {'the largest id' if end == -1 else end}"
            )

    def _pad_id(self, described: JsonObject) -> int:
        """The id that fills a text up. UserError for a tokenizer without one."""
        token: Any = described.get("pad_token") or (self._tokenizer.padding or {}).get("pad_token")
        token = token.get("content") if is_object(token) else token
        if token is None and self._config.end is not None:
            token = _END
        number = self._tokenizer.token_to_id(token) if isinstance(token, str) else None
        if number is None:
            raise UserError(f"{self._folder}: tokenizer_config.json names no pad_token of its own")
        return number


def _side(described: JsonObject, kind: str) -> str:
    """The side that is filled up: Gemma's classes say left where the file is silent."""
    usual = "left" if kind.startswith(_GEMMA) else "right"
    side = described.get("padding_side") or usual
    if side not in ("left", "right"):
        raise UserError(f"padding_side={shorten(repr(side))} of tokenizer_config.json is no side")
    return side


def _opened(folder: Path, *, lower: bool) -> Any:
    """The tokenizer in a folder, of lower case if asked for. UserError if there is none."""
    tokenizers = needed("tokenizers", "text")
    whole, vocabulary, merges = (folder / TOKENIZER_FILES[i] for i in (0, 2, 3))
    if not whole.is_file() and (lower or not vocabulary.is_file() or not merges.is_file()):
        raise UserError(f"{folder} has no tokenizer.json, nor vocab.json with merges.txt: copy it")
    try:
        if whole.is_file():
            tokenizer = tokenizers.Tokenizer.from_file(str(whole))
        else:
            tokenizer = _of_clip(tokenizers, str(vocabulary), str(merges))
    except Exception as error:  # the library raises no other class
        reason = shorten(" ".join(str(error).split()), MESSAGE)
        raise UserError(f"{folder}: the tokenizer cannot be read: {reason}") from error
    numbers = read_json(vocabulary) if whole.is_file() and vocabulary.is_file() else {}
    if any(tokenizer.token_to_id(token) != number for token, number in numbers.items()):
        raise UserError(f"{whole} and {vocabulary} number tokens differently: keep one of them")
    if hasattr(tokenizer.model, "dropout"):
        tokenizer.model.dropout = None  # it is for training
    if lower:
        normalizers, first = tokenizers.normalizers, tokenizers.normalizers.Lowercase()
        rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([first, *rest])
    return tokenizer


def _of_clip(tokenizers: Any, vocabulary: str, merges: str) -> Any:
    """CLIP's tokenizer from its two files, as transformers builds it."""
    model = tokenizers.models.BPE.from_file(
        vocabulary, merges, end_of_word_suffix="</w>", unk_token=_END
    )
    tokenizer = tokenizers.Tokenizer(model)
    made, size = Path(merges).read_text(encoding="utf-8").count(" "), tokenizer.get_vocab_size()
    if made < size - _UNMERGED:  # a space in each line
        raise UserError(f"{merges} has {made:,} merges for {size:,} tokens: it is cut off")
    normal, split = tokenizers.normalizers, tokenizers.pre_tokenizers
    spaces = normal.Replace(tokenizers.Regex(r"\s+"), " ")
    tokenizer.normalizer = normal.Sequence([normal.NFC(), spaces, normal.Lowercase()])
    words = split.Split(tokenizers.Regex(_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = split.Sequence([words, split.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens([_START, _END])
    start, end = ((token, tokenizer.token_to_id(token)) for token in (_START, _END))
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(
        end, start, trim_offsets=False, add_prefix_space=False
    )
    return tokenizer


def clean_text(text: str, how: str) -> str:
    """A text as open_clip cleans it (`get_clean_fn`). UserError for another word than its three."""
    if not text.isascii() or "&" in text:  # the rest it leaves as it is
        text = needed("ftfy", "text").fix_text(text)
    text = html.unescape(html.unescape(text))
    if how == "canonicalize":
        text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation))
    elif how not in ("lower", "whitespace"):
        raise UserError(f"open_clip's clean={shorten(repr(how))} is not known here")
    text = " ".join(text.split())
    return text if how == "whitespace" else text.lower()
