"""Rules for types and English: what a name, an annotation and a docstring must say."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_rules import CORE, FILES, shown

MOST_ANY = 36
"""Most parameters and fields of the core whose annotation has Any. It only falls."""
BY_NAME = {
    ("data/catalog.py", "classes"): "torchvision's SVHN does not name its classes",
    ("data/decode.py", "dtype"): "an array is known without NumPy, which need not be installed",
    ("training/counted_data.py", "datamodule"): "a Trainer has it only after its first call",
    ("training/counted_data.py", "consumed_samples"): "the data may be any of Lightning's",
    ("weights/building.py", "__module__"): "some operators of torch have none",
}
"""(file of the core, attribute) that is asked for by its name -> the reason. At most ten."""
NO_NAMES = {"found", "given", "own", "kept", "there", "said"}
"""Words that do not say what a variable holds."""
NO_BEGINNINGS = set(
    "And As At But By For From How If In It Not Of On Only Or That These This Those To What When "
    "Where Whether Which Who Whose With Without Also Its Such Their".split()
)
"""Words with which no docstring begins: a noun or a verb comes first."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def nodes(paths: list[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            yield path, node


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    stars = [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *stars]


def annotated(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """(name, annotation) of the parameters of a function, or of a field."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from ((each.arg, each.annotation) for each in parameters(node))
    if isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target), node.annotation


def test_annotations_of_the_core_say_a_type() -> None:
    untyped = [
        f"{shown(path)}: {name}"
        for path, node in nodes(CORE)
        for name, annotation in annotated(node)
        if annotation is not None and re.search(r"\bAny\b", ast.unparse(annotation))
    ]
    assert len(untyped) <= MOST_ANY, untyped


def test_attributes_of_the_core_are_asked_for_by_type() -> None:
    names = {
        (shown(path), str(node.args[1].value))
        for path, node in nodes(CORE)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
    }
    assert names == BY_NAME.keys() and len(names) <= 10


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    first = [
        (shown(path), getattr(node, "lineno", 1), re.split(r"[\s,:]", text)[0])
        for path, node in nodes(FILES)
        if isinstance(node, Definition) and (text := ast.get_docstring(node))
    ]
    assert [place for place in first if place[2] in NO_BEGINNINGS] == []


def test_variables_are_called_what_they_hold() -> None:
    stored = [
        f"{shown(path)}:{node.lineno} {node.id}"
        for path, node in nodes(FILES)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NO_NAMES
    ]
    taken = [
        f"{shown(path)} {name}"
        for path, node in nodes(FILES)
        for name, _ in annotated(node)
        if name in NO_NAMES
    ]
    assert stored + taken == []
