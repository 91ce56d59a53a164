"""What `--model.compile true` needs on this machine: a folder that lasts, and a C++ compiler.

PyTorch's inductor keeps what it has compiled in a folder for temporary files, which is emptied when
a machine starts. Kept in the cache, a second start of a run takes a part of the first one's time
(docs/speed.md). Code for a CPU is compiled for all its instructions (-march=native), while
inductor's keys name only some of them, so that every kind of CPU has a folder of its own: code from
a home directory that several machines share would crash the others.
"""

import hashlib
import os
from pathlib import Path

from vit.cache import cache_directory
from vit.errors import UserError
from vit.hardware import cpu_flags, cpu_name

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable of inductor's folder; a user's own value is kept."""


def prepare_compiling(device: str) -> None:
    """Lets torch.compile keep its code in the cache. Call before the first compiled call.

    Raises UserError where code for `device` cannot be compiled: without a C++ compiler.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # heavy

    # Importing inductor, as Lightning does, sets the variable to the folder for temporary files.
    if os.environ.get(FOLDER) in (None, os.path.abspath(default_cache_dir())):
        os.environ[FOLDER] = str(compiled_folder())
    if device != "cpu":
        return  # Triton brings its own compiler
    from torch._inductor.cpp_builder import get_cpp_compiler  # heavy
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise UserError(
            "model.compile=true needs a C++ compiler, and none was found: install g++ (Debian and "
            "Ubuntu: apt install g++), name one in the environment variable CXX, or leave "
            "model.compile out"
        ) from error


def compiled_folder() -> Path:
    """Where the code of this kind of CPU is kept; it may not exist yet."""
    kind = f"{cpu_name()} {cpu_flags()}"
    return cache_directory() / "compiled" / hashlib.sha256(kind.encode()).hexdigest()[:16]
