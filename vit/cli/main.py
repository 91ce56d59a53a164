"""The `vit` command: imports the subcommand, runs it and reports errors in one line.

Nothing heavy is imported here, so that `vit --help` answers at once.
"""

import os
import sys
import time
import traceback
from io import TextIOWrapper
from signal import SIGINT
from typing import NoReturn

import vit
from vit import signals
from vit.cli.process import keep_memory, sleep_when_waiting
from vit.console import say
from vit.errors import MESSAGE, UserError, did_you_mean, of_worker, shorten, user_error_in
from vit.tables import lines, resolve, rows

EXAMPLES = """\
examples:
  vit fit -c quickstart                           train on handwritten digits, in under two minutes
  vit fit --data my_photos/                       fine-tune on your pictures: a folder per class
  vit classify runs/my_photos-finetune photo.jpg  print the top five classes with probabilities
  vit test runs/my_photos-finetune                evaluate the run on its held-out test images

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
        if not args or args[0] in ("-h", "--help") or args == ["help"]:
            print(usage())
            return 0
        if args[0] == "--version":
            print(f"vit {vit.__version__}")
            return 0
        with signals.handled():
            try:
                return _run(*args)
            except UserError:  # perhaps by words of other packages
                from vit.synonyms import in_our_words

                if (ours := in_our_words(args)) is None:
                    raise
            return _run(*ours)  # not within `except`: the mistake is no cause of its errors
    except BaseException as error:
        return _status(error)


def _run(name: str, *args: str) -> int:
    if name not in (commands := rows("commands")):
        hint = did_you_mean(name.lower(), commands) or "; `vit --help` lists the commands"
        raise UserError(f"unknown command {name!r}{hint}")
    keep_memory()
    sleep_when_waiting()  # before torch is imported
    return resolve(commands[name])([*args])


def _status(error: BaseException) -> int:
    """Reports the error in one line; returns the exit status."""
    if isinstance(error, signals.Stopped | KeyboardInterrupt):
        stopped = error if isinstance(error, signals.Stopped) else signals.Stopped(SIGINT)
        if not stopped.announced:
            print("vit: stopped", file=sys.stderr)
        return 128 + stopped.number
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
        # A full disk, a lost share, or a lost process of the run.
        file = "" if error.filename is None else f": {error.filename}"
        say(f"vit: {error.strerror or text}{file}", everywhere=True)
    else:
        say(f"vit: {_unexpected(error)}", everywhere=True)
    return 1


def _unexpected(error: BaseException) -> str:
    """The line about an internal error, whose traceback is written to a file in the cache."""
    from vit.writing import cache_directory, write_text

    name = f"traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    path = cache_directory() / "errors" / name
    place = f"is in {path}"
    try:
        write_text(path, "".join(traceback.format_exception(error)))
    except OSError:
        place = "could not be written"
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = [f"{frame.f_globals.get('__name__')}." for frame in frames]
    module = [name[:-1] for name in ("vit.", *modules) if name.startswith("vit.")][-1]
    problem = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"unexpected error in {module}: {shorten(problem, MESSAGE)}; the traceback {place}"


def entry() -> NoReturn:
    """Runs one command as the process `vit`, and ends it."""
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    signals.end(status)
