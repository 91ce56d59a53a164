"""One line out of jsonargparse's many, and of argparse's usage dump."""

import argparse
import inspect
import re
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from vit.errors import MESSAGE, UserError, did_you_mean, shorten


class OneLineParser(argparse.ArgumentParser):
    """The parser of a command: no abbreviations, help texts as written, one line per complaint."""

    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"allow_abbrev": False, "formatter_class": form, **options})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def is_refusal(message: str) -> bool:
    """Whether a message is jsonargparse's account of a value that fits none of its types."""
    return message.startswith("Does not validate against any of the Union subtypes")


def explain(message: str, known: list[str]) -> str:
    """A parser's message in one line, with the option of `known` that was probably meant."""
    text = plain(message)
    if not re.match(r"there is no option|option|unrecognized", text, re.IGNORECASE):
        return text  # it is the value that is wrong
    for word in text.replace("=", " ").split():
        wrong = word.strip("-.,;:'\"")
        if "." in wrong and wrong not in known:
            near = nearest_option(wrong, known)
            return f"{text}; did you mean --{near}?" if near else text
    return text


def nearest_option(wrong: str, known: list[str]) -> str | None:
    """The known option most like `wrong`: in spelling, or in its last part within its group."""
    near = get_close_matches(wrong, known, n=1, cutoff=0.85)
    if near:
        return near[0]
    group, last = wrong.split(".", 1)[0], wrong.rsplit(".", 1)[-1]
    ends = {option.rsplit(".", 1)[-1]: option for option in known if option.startswith(group + ".")}
    near = get_close_matches(last, ends, n=1, cutoff=0.6)
    return ends[near[0]] if near else None


def plain(message: str) -> str:
    """jsonargparse's message in one line, with the Python types put simply."""
    text = " ".join(message.split())
    group = re.search(r"Group '([^']+)' does not accept option '([^']+)'", text)
    if group:
        return f"there is no option {group[1]}.{group[2]}"
    linked = re.match(r'Linked "([^"]+)" must be given via', text)
    if linked:
        return f"{linked[1]} follows from the data and cannot be set"
    if is_refusal(text):
        return unusable_class(text) or shorten(text, MESSAGE)
    keys = re.findall(r'"([\w.]+)":', text)
    named = plain_value(keys, text) if keys else None
    if named:
        return named
    text = text.replace("typing.", "").replace("Parser key ", "").replace("Literal[", "one of [")
    return shorten(text, MESSAGE)


def plain_value(keys: list[str], text: str) -> str | None:
    """What is wrong with the value of the option `keys`, from the outer one to the inner one."""
    outer, inner = keys[0], ".".join(dict.fromkeys(keys))
    option = re.search(r"Option '([^']+)' is not accepted", text)
    if option:
        owner = re.search(r"class_path[= ]'([\w.]+)'", text)
        hint = did_you_mean(option[1], parameters(owner[1])) if owner else ""
        return f"{inner} takes no option {option[1]!r}{hint}"
    missing = re.search(r"module '([\w.]+)' has no attribute '(\w+)'", text)
    if missing:
        hint = did_you_mean(missing[2], dir(import_module(missing[1])))
        return f"{outer}: {missing[1]} has no class {missing[2]!r}{hint}"
    unusable = unusable_class(text)
    if unusable:
        return f"{inner}: {unusable}"
    unnamed = re.search(r"Expected a dot import path string: (\S+)", text)
    if unnamed and outer.startswith("trainer."):
        example = "such as lightning.pytorch.callbacks.EarlyStopping"
        return f"{inner}={shorten(unnamed[1])} is not the name of a class, {example}"
    section = re.search(r"Unable to load config '(.*?)'", text)
    if section:
        return f"{outer}={shorten(section[1])} holds no options, and is no file of options"
    nested = re.search(r"\": Expected a (.+?)\. Got value: (.*?)(?:\. Got| - Expected|$)", text)
    if nested:
        return f"{inner}={shorten(nested[2])} is not {simple(nested[1])}"
    union = re.search(r"Union subtypes Subtypes: \[(.*?)\] Errors.*? Given value: (\S+.*?)$", text)
    if union:
        value = re.sub(r"[. ]+Got value: Namespace.*$", "", union[2])
        return f"{inner}={shorten(value)} is none of: {simple(union[1])}"
    path = re.search(r"Expected a dot import path string: (\S+)", text)
    if path:
        return f"{inner}={shorten(path[1])} is not the name of a class, such as torch.optim.AdamW"
    return None


def unusable_class(text: str) -> str | None:
    """Why a class that the user named cannot be imported or built; None where it is not that."""
    package = re.search(r"Requirement '([^']+)' not met", text)
    owner = re.search(r"(?:Problem with given class_path|class_path=)\s*'?([\w.]+)", text)
    name = owner[1].rsplit(".", 1)[-1] if owner else "this class"
    if package:
        return f"{name} needs a package that is not installed: pip install '{package[1]}'"
    module = re.search(r"No module named '([\w.]+)'", text)
    if module:
        value = re.search(r"(?:given class_path '|Got value: )([\w.]+)", text)
        source = f", so {value[1]} cannot be imported" if value else ""
        return f"there is no module {module[1]!r}{source}"
    required = re.search(r"the following arguments are required: ([\w, ]+?) -", text)
    if required:
        return f"{name} needs a value for {required[1]}"
    problem = re.search(
        r"(?:Errors: - (?!Expected|Not a valid|Problem)|given class_path '[\w.]+': )(?!Parser key)"
        r"(.+?) - (?:Expected|Not a valid|Problem)",
        text,
    )
    return f"{name}: {shorten(problem[1], MESSAGE)}" if problem else None


def simple(types: str) -> str:
    """Types as a person would write them."""
    types = re.sub(r"<class '([^']+)'>", r"\1", types).replace("NoneType", "null")
    if types.isidentifier():
        return f"{'an' if types[0] in 'aeiou' else 'a'} {types}"
    choices = re.fullmatch(r"typing\.Literal\[(.*)\]", types)
    if choices and "Literal" not in choices[1]:
        return f"one of {choices[1]}"
    return re.sub(r"typing\.Literal\[(.*?)\]", r"\1", types).replace("typing.", "")


def parameters(class_path: str) -> list[str]:
    """Names that the class takes; none where it has no signature."""
    module, name = class_path.rsplit(".", 1)
    try:
        return list(inspect.signature(getattr(import_module(module), name)).parameters)
    except (ImportError, AttributeError, TypeError, ValueError):
        return []
