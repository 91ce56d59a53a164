"""Nothing in vit/ needs POSIX-only features; the code runs as on Windows."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import vit

PACKAGE = Path(vit.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)

# The libraries underneath are imported first: they look for their own way on each system.
WINDOWS = """\
import importlib, os, signal, subprocess, sys
import jsonargparse, lightning.pytorch.cli, matplotlib.pyplot, rich.progress, torch, torchmetrics
import torch.distributed.checkpoint, torchvision.transforms.v2
from pathlib import Path
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in dir(signal):
    if name.startswith("SIG") and name[3:] not in ("INT", "TERM", "ABRT", "_DFL", "_IGN"):
        delattr(signal, name)
subprocess.Popen.kill = subprocess.Popen.terminate  # there is one way to end a process
for name in ("killpg", "fork", "getuid", "register_at_fork", "sched_getaffinity", "sysconf"):
    delattr(os, name)
"""


def as_on_windows(code: str, folder: Path, deadline: Callable[[float], float]) -> str:
    """What the code prints."""
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=deadline(200),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_without_what_posix_has(
    tmp_path: Path, deadline: Callable[[float], float]
) -> None:
    code = f"for name in {MODULES}: importlib.import_module(name)\nprint('imported')"
    assert as_on_windows(code, tmp_path, deadline).splitlines()[-1] == "imported"
