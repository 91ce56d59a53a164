"""Vision Transformers for image classification: train, fine-tune, evaluate, publish."""

import re
import sys
from opcode import opmap
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

        missing, frame = Missing("vit", name), sys._getframe(1)
        if frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
            raise ImportError(str(missing))  # Python would say less after an AttributeError
        raise missing
    from vit.tables import resolve

    return resolve(f"{_HOMES[name]}:{name}")


def __dir__() -> list[str]:
    return __all__
