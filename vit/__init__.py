"""Vision Transformers for image classification: train, fine-tune, evaluate, publish."""

import re
from pathlib import Path

# Public names are imported on first use, so that `import vit` stays light. __init__.pyi says where
# each is defined, to this module and to type checkers. Recipes and config.yaml name classes by
# them: class_path: vit.EMA.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("vitkit")
    if name not in _HOMES:
        from vit.synonyms import Missing

        raise Missing("vit", name)
    from vit.tables import resolve

    return resolve(f"{_HOMES[name]}:{name}")


def __dir__() -> list[str]:
    return __all__
