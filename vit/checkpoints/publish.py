"""Uploading a model directory to the Hugging Face hub, with a card that says what it is."""

import json
from pathlib import Path
from typing import Any

from vit.checkpoints.files import read_json
from vit.checkpoints.hub import hub_library
from vit.checkpoints.pretrained import inspect_pretrained
from vit.checkpoints.writing import atomic
from vit.errors import UserError

_SHOWN_CLASSES = 50


def model_card(directory: str | Path) -> str:
    """README.md for a model directory of ours: recipe, data, metrics, classes, how to use it."""
    path = Path(directory)
    if read_json(path / "config.json").get("format") != "vit":
        raise UserError(f"{directory} is no model directory of this package; see `vit convert`")
    info = inspect_pretrained(path)
    extra = info.extra
    lines = [
        "---",
        "library_name: vit",
        "pipeline_tag: image-classification",
        "tags: [vision-transformer, image-classification]",
        "---",
        f"# {path.resolve().name}",
        "",
        "A Vision Transformer (arXiv:2010.11929) or its ResNet baseline, trained with `vit`.",
        "",
        "```python",
        "import vit",
        "",
        'classifier = vit.load("PATH")  # a download of this repository',
        'classifier.predict("photo.jpg", top=5)',
        "```",
        "",
    ]
    for title, key in (("Recipe", "recipe"), ("Data", "data"), ("Source", "source")):
        if extra.get(key):
            lines += [f"## {title}", "", _as_text(extra[key]), ""]
    metrics = extra.get("metrics") or {}
    if metrics:
        lines += ["## Metrics", "", "| metric | value |", "|---|---|"]
        lines += [f"| {name} | {_number(value)} |" for name, value in metrics.items()]
        lines.append("")
    if info.classes:
        shown = ", ".join(info.classes[:_SHOWN_CLASSES])
        more = len(info.classes) - _SHOWN_CLASSES
        rest = f" and {more} more" if more > 0 else ""
        lines += [f"## Classes ({len(info.classes)})", "", shown + rest, ""]
    described = json.dumps(info.config.to_dict(), indent=1)
    return "\n".join([*lines, "## Architecture", "", "```json", described, "```", ""])


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else f"```json\n{json.dumps(value, indent=1)}\n```"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def push_to_hub(
    directory: str | Path, repository: str, *, private: bool = False, message: str = "Add model"
) -> str:
    """Uploads model.safetensors, config.json and a card to `org/name`; returns its address.

    Uses the login of huggingface_hub. A README.md that is there already is kept.
    """
    path = Path(directory)
    card = model_card(path)
    if not (path / "README.md").exists():
        with atomic(path / "README.md") as temporary:
            temporary.write_text(card, encoding="utf-8")
    api = hub_library().HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=path,
            allow_patterns=["model.safetensors", "config.json", "README.md"],
            commit_message=message,
        )
    except (OSError, ValueError) as error:
        raise UserError(f"upload to {repository} failed: {str(error).splitlines()[0]}") from error
    return f"hf://{repository}"
