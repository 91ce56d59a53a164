"""The weights that a word of a command means."""

from pathlib import Path


def weights_of(model: str) -> str:
    """The best checkpoint of an unfinished run; else `model` itself."""
    folder = Path(model).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "model" / "config.json").is_file():
        from vit.runs.directory import find_checkpoint  # heavy: imports lightning

        return str(find_checkpoint(folder))
    return str(folder) if folder.exists() else model
