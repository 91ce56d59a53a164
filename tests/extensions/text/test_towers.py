"""Text towers give what transformers gives, and tokens are those of transformers and open_clip."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

import vit
from tests.extensions.text.repositories import (
    END,
    PATCH,
    SIDE,
    START,
    TEXT,
    TEXTS,
    VISION,
    gemma_tokenizer,
    hugging_face,
    scattered,
    write_two_files,
)
from vit.errors import UserError
from vit.extensions.text.reading import read_texts
from vit.extensions.text.tokenizing import TextTokens, clean_text
from vit.extensions.text.tower import TextConfig
from vit.models.config import ViTConfig
from vit.weights.weight_file import open_weights

NAMES = ["cat", "dog", "a red car"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIPModel", {}),
    "clip, exact GELU": ("CLIPModel", {"hidden_act": "gelu"}),
    "clip, end as it was": ("CLIPModel", {"eos_token_id": 2}),
    "metaclip 2": ("MetaClip2Model", {}),
    "siglip": ("SiglipModel", {}),
}


def relative(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def config(context: int, end: int | None, vocabulary: int = 10_000) -> TextConfig:
    return TextConfig(layers=ViTConfig(), vocabulary=vocabulary, context=context, end=end)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_features_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kind, text = KINDS[name]
    peer = hugging_face(tmp_path, kind, text)
    with torch.no_grad():
        peer.logit_scale.fill_(3.0)
    peer.save_pretrained(tmp_path)
    texts = read_texts(open_weights(tmp_path))
    ids = TextTokens(tmp_path, texts.tower.config, texts.clean)(TEXTS)
    reader = "AutoTokenizer" if kind == "SiglipModel" else "CLIPTokenizer"
    theirs = getattr(transformers, reader).from_pretrained(tmp_path)
    options = {"padding": "max_length", "max_length": 16, "truncation": True}
    assert torch.equal(ids, theirs(TEXTS, return_tensors="pt", **options).input_ids)
    features = peer.get_text_features(ids).pooler_output
    assert relative(texts.tower(ids), features) < 1e-5
    double = peer.double().get_text_features(ids).pooler_output
    assert relative(texts.tower.double()(ids), double) < 1e-9
    classifier = vit.load(tmp_path, names=NAMES, templates="{}")
    images = torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    pixels = classifier.preprocess.normalize(images)
    logits = peer.float()(
        input_ids=theirs(NAMES, return_tensors="pt", **options).input_ids,
        pixel_values=pixels,
    ).logits_per_image
    assert relative(classifier.model(pixels), logits) < 1e-5
    assert classifier.multilabel == (kind == "SiglipModel")


def test_a_causal_tower_reads_at_the_first_end_and_no_further(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    hugging_face(tmp_path, "CLIPModel")
    texts = read_texts(open_weights(tmp_path))
    end = texts.tower.config.end
    ids = torch.tensor([[5, 6, end, end, 7, 8]])
    other = torch.tensor([[5, 6, end, 9, 9, 9]])
    assert torch.equal(texts.tower(ids), texts.tower(other))
    assert not torch.allclose(texts.tower(ids), texts.tower(torch.tensor([[5, 7, end, 9, 9, 9]])))


def test_two_files_are_the_tokenizer_that_transformers_makes_of_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = write_two_files(tmp_path)
    ours = TextTokens(tmp_path, config(16, vocabulary[END]), None)
    theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    expected = theirs(TEXTS, padding="max_length", max_length=16, truncation=True)
    assert ours(TEXTS).tolist() == expected.input_ids
    theirs.save_pretrained(tmp_path / "whole")
    (tmp_path / "whole/vocab.json").unlink(missing_ok=True)
    assert torch.equal(TextTokens(tmp_path / "whole", config(16, -1), None)(TEXTS), ours(TEXTS))


def test_clip_is_of_lower_case_with_one_start_and_one_end(tmp_path: Path) -> None:
    vocabulary = write_two_files(tmp_path)
    tokens = TextTokens(tmp_path, config(8, vocabulary[END]), None)
    [low], [high] = tokens(["a red car"]).tolist(), tokens([" A  Red CAR "]).tolist()
    words = [vocabulary[f"{word}</w>"] for word in ("a", "red", "car")]
    assert low == high == [vocabulary[START], *words, *[vocabulary[END]] * 4]
    [cut] = tokens(["red " * 20]).tolist()
    assert cut == [vocabulary[START], *[words[1]] * 6, vocabulary[END]]
    [padded] = TextTokens(tmp_path, config(8, -1), "lower")(["a red car"]).tolist()
    assert padded == [vocabulary[START], *words, vocabulary[END], 0, 0, 0]


@pytest.mark.parametrize("side", ["left", "right", None])
def test_the_side_that_is_filled_up_is_the_repositorys(side: str | None, tmp_path: Path) -> None:
    tokenizer = gemma_tokenizer(tmp_path, padding_side=side)
    [ids] = TextTokens(tmp_path, config(6, None), None)(["Red Cat"]).tolist()
    short = tokenizer.encode("red cat").ids
    filled = [0] * (6 - len(short))
    assert short[-1] == 1 and len(filled) > 0
    assert ids == ([*short, *filled] if side == "right" else [*filled, *short])


def test_open_clips_cleaning_is_its_own() -> None:
    pytest.importorskip("ftfy")
    assert clean_text("  Black &amp;amp; White  ", "lower") == "black & white"
    assert clean_text("it\u2019s a_Cat!", "canonicalize") == "its a cat"
    assert clean_text("A  Cat", "whitespace") == "A Cat"
    with pytest.raises(UserError, match="clean='upper' is not known"):
        clean_text("a", "upper")


REFUSED = {
    "empty": (" ", "is no text of printable letters"),
    "control": ("a\x1bcat", "is no text of printable letters"),
    "end": (f"a cat {END} dog", "a sign of the tokenizer"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_name_cannot_be_a_sign(text: str, tmp_path: Path) -> None:
    vocabulary = write_two_files(tmp_path)
    tokens = TextTokens(tmp_path, config(16, vocabulary[END]), None)
    name, message = REFUSED[text]
    with pytest.raises(UserError, match=message):
        tokens(["cat", name])


def test_a_tokenizer_of_another_model_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer\.json, nor vocab\.json"):
        TextTokens(tmp_path, config(16, 5), None)
    vocabulary = write_two_files(tmp_path)
    for end, size, message in (
        (vocabulary[END], 300, "300 tokens: it is another model's"),
        (7, 10_000, "and the tower reads it at 7"),
    ):
        with pytest.raises(UserError, match=message):
            TextTokens(tmp_path, config(16, end, size), None)(["cat"])
    merges = tmp_path / "merges.txt"
    merges.write_text("\n".join(merges.read_text().splitlines()[:50]) + "\n")
    with pytest.raises(UserError, match=r"has 50 merges for \d+ tokens: it is cut off"):
        TextTokens(tmp_path, config(16, vocabulary[END]), None)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": []}}')
    with pytest.raises(UserError, match="the tokenizer cannot be read: "):
        TextTokens(tmp_path, config(16, 5), None)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "SiglipTokenizer"}')
    with pytest.raises(UserError, match=r"\(spiece\.model\) is not read here"):
        TextTokens(tmp_path, config(16, None), None)


def as_one_file(folder: Path) -> dict[str, Any]:
    """The content of a tokenizer.json that is equal to the folder's two files."""
    folder.mkdir()
    vocabulary = write_two_files(folder)
    built = TextTokens(folder, config(16, vocabulary[END]), None)._tokenizer
    return json.loads(built.to_str()) | {"truncation": None, "padding": None}


def test_a_tokenizer_that_contradicts_its_model_is_refused(tmp_path: Path) -> None:
    whole = as_one_file(tmp_path / "clip")
    end = json.loads((tmp_path / "clip" / "vocab.json").read_text())[END]

    def ids(**changes: Any) -> list[list[int]]:
        (tmp_path / "clip" / "tokenizer.json").write_text(json.dumps(whole | changes))
        return TextTokens(tmp_path / "clip", config(16, end), None)(["a photo", "Cat"]).tolist()

    right = ids()
    assert ids(model=whole["model"] | {"dropout": 0.9}) == right
    for changes in ({"normalizer": None}, {"post_processor": None}):
        with pytest.raises(UserError, match="tells A from a, or starts no text"):
            ids(**changes)
    swapped = dict(whole["model"]["vocab"])
    swapped["a"], swapped["b"] = swapped["b"], swapped["a"]
    with pytest.raises(UserError, match="number tokens differently"):
        ids(model=whole["model"] | {"vocab": swapped})


def test_a_cased_tokenizer_of_another_vocabulary_is_taken(tmp_path: Path) -> None:
    """MetaCLIP 2 has XLM-V's, which tells A from a, and has other signs than CLIP's."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "a", "A", "cat", "Cat"]
    numbers = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, ends)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    described = {"tokenizer_class": "XLMRobertaTokenizer", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    ids = TextTokens(tmp_path, config(5, 2), None)(["a cat", "A Cat"]).tolist()
    assert ids == [[0, 4, 6, 2, 1], [0, 5, 7, 2, 1]]


OPEN: dict[str, dict[str, Any]] = {
    "clip": {},
    "quick": {"quick_gelu": True},
    "siglip": {
        "custom_text": True,
        "init_logit_bias": -10,
        "text_cfg": {
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "hf_tokenizer_name": "gemma",
            "tokenizer_kwargs": {"clean": "canonicalize"},
            "norm_kwargs": {"eps": 1e-6},
            "act_kwargs": {"approximate": "tanh"},
        },
    },
}
OPEN_TEXT = {"context_length": 16, "vocab_size": 700, "width": 24, "heads": 3, "layers": 2}


def open_clip_model(folder: Path, changes: dict[str, Any]) -> Any:
    """A model of open_clip with random weights, and its files but for the tokenizer's."""
    open_clip = pytest.importorskip("open_clip")
    vision = {"image_size": SIDE, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
    text = {**OPEN_TEXT, **changes.get("text_cfg", {})}
    config = {"embed_dim": 20, "vision_cfg": vision, **changes, "text_cfg": text}
    kinds = {k: v for k, v in config.items() if k != "custom_text"}
    kind = open_clip.CustomTextCLIP if changes.get("custom_text") else open_clip.CLIP
    model = scattered(kind(**kinds))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    return model


@pytest.mark.parametrize("name", OPEN)
@torch.no_grad()
def test_features_are_those_of_open_clip(name: str, tmp_path: Path) -> None:
    peer = open_clip_model(tmp_path, OPEN[name])
    texts = read_texts(open_weights(tmp_path / "open_clip_pytorch_model.bin"))
    ids = torch.randint(1, 690, (4, 16), generator=torch.Generator().manual_seed(0))
    for row, end in enumerate((3, 6, 6, 15)):
        ids[row, end] = 699
    assert relative(texts.tower(ids), peer.encode_text(ids)) < 1e-5
    assert relative(texts.tower.double()(ids), peer.double().encode_text(ids)) < 1e-9
    assert texts.clean == ("canonicalize" if name == "siglip" else "lower")
    assert texts.scale == pytest.approx(float(peer.logit_scale.exp()))
    assert texts.bias == (-10 if name == "siglip" else None)


@torch.no_grad()
def test_names_answer_as_open_clip(tmp_path: Path) -> None:
    vocabulary = write_two_files(tmp_path)
    peer = open_clip_model(tmp_path, {"text_cfg": {"vocab_size": len(vocabulary)}})
    classifier = vit.load(tmp_path / "open_clip_pytorch_model.bin", names=NAMES, templates="{}")
    ids = TextTokens(tmp_path, config(16, -1, len(vocabulary)), "lower")(NAMES)
    pixels = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    assert relative(classifier.model(pixels), peer.get_logits(pixels, ids)[0]) < 1e-5


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "pooling": ({"pool_type": "first"}, "open_clip's pool_type='first' of its texts"),
    "norm": ({"final_ln_after_pool": True}, "final_ln_after_pool=True of its texts"),
    "last": ({"pool_type": "last"}, "pool_type with no_causal_mask"),
    "separator": ({"tokenizer_kwargs": {"strip_sep_token": True}}, "tokenizer_kwargs.strip_sep"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_text_towers_of_open_clip_are_refused(case: str, tmp_path: Path) -> None:
    open_clip_model(tmp_path, {})
    changes, message = OTHERS[case]
    path = tmp_path / "open_clip_config.json"
    values = json.loads(path.read_text())
    values["model_cfg"]["text_cfg"] |= changes
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        read_texts(open_weights(tmp_path / "open_clip_pytorch_model.bin"))
    path.unlink()
    with pytest.raises(UserError, match=r"needs the open_clip_config\.json of its repository"):
        read_texts(open_weights(tmp_path / "open_clip_pytorch_model.bin"))


@torch.no_grad()
def test_logits_are_those_of_siglip_2_with_patches_as_rows(tmp_path: Path) -> None:
    """Siglip2Model: its image tower takes patches."""
    transformers = pytest.importorskip("transformers")
    vocabulary = gemma_tokenizer(tmp_path).get_vocab_size()
    vision = {name: value for name, value in VISION.items() if name != "image_size"}
    grid = SIDE // PATCH
    settings = transformers.Siglip2Config(
        text_config={**TEXT, "vocab_size": vocabulary, "projection_size": vision["hidden_size"]},
        vision_config={**vision, "num_patches": grid**2},
    )
    peer = scattered(transformers.Siglip2Model(settings))
    peer.save_pretrained(tmp_path)
    processor = {"image_processor_type": "SiglipImageProcessor", "resample": 2}
    processor |= {"size": {"height": SIDE, "width": SIDE}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    classifier = vit.load(tmp_path, names=NAMES, templates="{}")
    pixels = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    patches = torch.nn.functional.unfold(pixels, PATCH, stride=PATCH).mT
    patches = patches.unflatten(-1, (3, PATCH**2)).mT.flatten(-2)  # colours last
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    logits = peer(
        input_ids=theirs(NAMES, padding="max_length", max_length=16, return_tensors="pt").input_ids,
        pixel_values=patches,
        pixel_attention_mask=torch.ones(patches.shape[:2], dtype=torch.int32),
        spatial_shapes=torch.tensor([(grid, grid)] * 2),
    ).logits_per_image
    assert relative(classifier.model(pixels), logits) < 1e-5 and classifier.multilabel
