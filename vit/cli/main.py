"""The `vit` command: imports the subcommand, runs it and reports errors in one line.

Nothing heavy is imported here, so that `vit --help` answers at once.
"""

import os
import sys
import time
import traceback
from io import TextIOWrapper
from typing import NoReturn

import vit
from vit import signals
from vit.console import say
from vit.errors import MESSAGE, UserError, did_you_mean, of_worker, shorten, user_error_in
from vit.exit import end
from vit.hardware import keep_memory, sleep_when_waiting
from vit.tables import lines, resolve, rows

ALIASES = {"train": "fit"}

EXAMPLES = """\
examples:
  vit fit -c quickstart                           train on handwritten digits, under two minutes
  vit fit --data my_photos/                       your pictures: one folder per class
  vit classify runs/my_photos-finetune photo.jpg  top five classes with probabilities
  vit test runs/my_photos-finetune                evaluate it on the held-out test images

`vit COMMAND --help` shows the options of a command."""


def usage() -> str:
    """The text of `vit --help`."""
    commands = [f"  {name:10} {text}".rstrip() for name, text in lines("commands").items()]
    return "\n".join(["usage: vit COMMAND [ARGUMENTS]", "", "commands:", *commands, "", EXAMPLES])


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    0: done. 2: a user error. 130, 143 and 138: ended by SIGINT, SIGTERM and SIGUSR1. 1: anything
    else, such as a full disk.
    """
    args = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal may lack the letters of a file name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if not args or args[0] in ("-h", "--help", "help"):
            print(usage())
            return 0
        if args[0] == "--version":
            print(f"vit {vit.__version__}")
            return 0
        with signals.handled():
            return _run(args[0], args[1:])
    except BaseException as error:
        return _status(error)


def _run(name: str, args: list[str]) -> int:
    name, commands = ALIASES.get(name, name), rows("commands")
    if name not in commands:
        names = [*ALIASES, *commands]
        hint = did_you_mean(name.lower(), names) or "; `vit --help` lists the commands"
        raise UserError(f"unknown command {name!r}{hint}")
    keep_memory()
    sleep_when_waiting()  # before torch is imported
    return resolve(commands[name])(args)


def _status(error: BaseException) -> int:
    """Reports the error in one line; returns the exit status."""
    if isinstance(error, signals.Stopped):
        if not error.announced:
            print("vit: stopped", file=sys.stderr)
        return 128 + error.number
    if isinstance(error, KeyboardInterrupt):
        print("vit: stopped", file=sys.stderr)
        return 130
    if not isinstance(error, Exception):  # a parser's SystemExit, which is reported already
        raise error
    mistake = user_error_in(error)
    if mistake is not None:
        print(f"vit: {mistake}", file=sys.stderr)
        return 2
    if isinstance(error, BrokenPipeError):
        # The reader, such as `head`, has closed the pipe; Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    text = of_worker(str(error))
    known = isinstance(error, ConnectionError) or text != str(error)
    if isinstance(error, OSError) and (error.strerror or known):
        where = "" if error.filename is None else f": {error.filename}"
        # A full disk, a lost share, or a lost process of the run.
        say(f"vit: {error.strerror or text}{where}", everywhere=True)
        return 1
    say(f"vit: {_unexpected(error)}", everywhere=True)
    return 1


def _unexpected(error: BaseException) -> str:
    """The line about an internal error, whose traceback is written to a file in the cache."""
    from vit.cache import cache_directory

    name = f"traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    path = cache_directory() / "errors" / name
    where = f"is in {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(traceback.format_exception(error))
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        where = "could not be written"
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = ["vit", *(str(frame.f_globals.get("__name__")) for frame in frames)]
    ours = [module for module in modules if module == "vit" or module.startswith("vit.")]
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"unexpected error in {ours[-1]}: {shorten(what, MESSAGE)}; the traceback {where}"


def entry() -> NoReturn:
    """Runs one command as the process `vit`, and ends it."""
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    end(status)
