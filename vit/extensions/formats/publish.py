"""Uploading a trained model to the Hugging Face hub, with a card that says what it is."""

import json
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from vit.errors import UserError, needed, some_of
from vit.weights.names import TRAINED_ON
from vit.weights.native import WEIGHTS
from vit.weights.pretrained import inspect_pretrained
from vit.weights.weight_file import read_json
from vit.writing import write_text

_DESCRIPTIONS = ("config.json", "trust.safetensors", TRAINED_ON, "README.md")
_SHOWN_CLASSES = 50


def model_card(directory: str | Path, repository: str) -> str:
    """README.md of `org/name` for a run or model directory of ours, by card.md.jinja."""
    info = inspect_pretrained(_model_directory(directory))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["indented"] = partial(json.dumps, indent=1)
    return environment.get_template("card.md.jinja").render(
        name=repository.rpartition("/")[2],
        repository=repository,
        extra=info.extra,
        classes=info.classes,
        shown=some_of(info.classes or (), _SHOWN_CLASSES),
        architecture=info.config.to_dict(),
    )


def _model_directory(directory: str | Path) -> Path:
    """The directory itself, or the model directory in a run directory."""
    path = Path(directory)
    for folder in (path / "model", path):
        if read_json(folder / "config.json").get("format") == "vit":
            return folder
    raise UserError(
        f"{directory} is no run or model directory of this package; `vit convert {directory} DIR "
        "--to native` makes one"
    )


def push_to_hub(
    directory: str | Path,
    repository: str,
    *,
    private: bool = False,
    message: str = "Add model",
    overwrite: bool = False,
) -> str:
    """Uploads the model of a run or model directory to `org/name`; returns its hf:// address.

    Uploads model.safetensors, config.json, trust.safetensors, trained_on and README.md, a card that
    is written unless there is one. Of local paths only the last part is published. Uses the login
    of huggingface_hub (`hf auth login`, or HF_TOKEN). `overwrite`: add the model to a repository
    that holds one, which is refused without it; the history keeps the older one.
    """
    path = _model_directory(directory)
    card = model_card(path, repository)
    api = needed("huggingface_hub", "hub").HfApi()
    if not (path / "README.md").exists():
        write_text(path / "README.md", card)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        held = not overwrite and api.file_exists(repository, WEIGHTS)
        if not held:
            api.upload_folder(
                repo_id=repository,
                folder_path=path,
                allow_patterns=[WEIGHTS, *_DESCRIPTIONS],
                commit_message=message,
            )
    except Exception as error:  # without network: errors of the HTTP library the hub's package uses
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"upload to {repository} failed: {reason}") from error
    if held:
        raise UserError(
            f"hf://{repository} holds a model already; give overwrite=True to put this one on top, "
            "or name another repository"
        )
    return f"hf://{repository}"
