"""What `--model.compile true` needs on this machine: a C++ compiler for a CPU."""

from vit.errors import UserError


def check_compiler(device: str) -> None:
    """UserError where code for `device` cannot be compiled."""
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
