"""The weights that a word of a command means, and the images of a run."""

from pathlib import Path

from vit.console import note
from vit.data.sources import Splits
from vit.errors import UserError


def weights_of(model: str) -> str:
    """The best checkpoint of an unfinished run; else `model` itself."""
    folder = Path(model).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "model" / "config.json").is_file():
        from vit.runs.directory import find_checkpoint  # heavy: imports lightning

        return str(find_checkpoint(folder))
    return str(folder) if folder.exists() else model


def splits_of(run: Path) -> Splits | None:
    """The images of a run, those that its weights had seen before it never held out; None, with a
    note, if they are gone."""
    from vit.data.module import ImageData  # heavy: imports lightning
    from vit.runs.evaluate import data_options
    from vit.runs.lineage import known_by

    options = data_options(run, [])
    try:
        return ImageData(**options).unseen_by(known_by(run, before=True)).splits
    except UserError as error:
        note(f"the images of {run} are not used: {error}")
        return None
