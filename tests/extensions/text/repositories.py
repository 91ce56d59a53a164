"""Small repositories of CLIP and SigLIP 2 with random weights, and vocabularies trained here."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

START, END = "<|startoftext|>", "<|endoftext|>"
WORDS = """a photo of the cat dog red car large small train bird ship horse it's they're 2026 won't
plane tree in video game sketch drawing art blurry bright dark pixelated close-up origami toy
""".split()
TEXTS = ["a photo of a cat", "it's a RED  car!", "zebra-crossing, 42 times", "ship"]
SIDE, PATCH = 32, 8
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
    "intermediate_size": 48,
}
TEXT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
}


def clip_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens and merges in CLIP's form: bytes, bytes at the end of a word, merges, two signs."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        end_of_word_suffix="</w>",
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    tokens += [token for pair in merges if (token := "".join(pair)) not in tokens]
    return {token: i for i, token in enumerate([*dict.fromkeys(tokens), START, END])}, merges


def write_two_files(folder: Path) -> dict[str, int]:
    """vocab.json and merges.txt; returns the tokens."""
    vocabulary, merges = clip_vocabulary()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    return vocabulary


def gemma_tokenizer(folder: Path, **described: Any) -> Tokenizer:
    """tokenizer.json in Gemma's form, with an end and no beginning, as SigLIP 2's."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokens = [*specials, *(f"<0x{n:02X}>" for n in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=tokens, show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", None, [("<eos>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    values = {"tokenizer_class": "Siglip2Tokenizer", "padding_side": "right", "pad_token": "<pad>"}
    values |= {"eos_token": "<eos>", "unk_token": "<unk>", "bos_token": "<bos>"} | described
    values |= {"mask_token": "<mask>", "add_eos_token": True, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return tokenizer


@torch.no_grad()
def scattered(model: Any) -> Any:
    """The model with random weights of a size at which every part matters."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "logit" not in name:
            parameter.normal_(0.02 if parameter.ndim > 1 else 0.0, 0.15, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter += 1.0
    return model.eval()


def hugging_face(folder: Path, kind: str, text: dict[str, Any] | None = None) -> Any:
    """A model of transformers and its files, with a tokenizer; returns the model."""
    import transformers

    if kind == "SiglipModel":
        size, end = gemma_tokenizer(folder).get_vocab_size(), {}
    else:
        vocabulary = write_two_files(folder)
        size, end = len(vocabulary), {"eos_token_id": vocabulary[END]}
    cls = getattr(transformers, kind)
    described = {**TEXT, "vocab_size": size, **end, **(text or {})}
    options = {} if kind == "SiglipModel" else {"projection_dim": 20}
    vision = dict(VISION)
    if kind == "SiglipModel":
        described["projection_size"] = VISION["hidden_size"]
    config = cls.config_class(text_config=described, vision_config=vision, **options)
    model = scattered(cls(config))
    model.save_pretrained(folder)
    processor = {"image_processor_type": "CLIPImageProcessor", "crop_size": SIDE, "size": SIDE}
    processor |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.3, 0.3, 0.2], "resample": 3}
    if kind == "SiglipModel":
        side = {"height": SIDE, "width": SIDE}
        processor = {"image_processor_type": "SiglipImageProcessor", "size": side, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model
