"""One thread per process, no reports of runs, no writing to the user's caches, and deadlines."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

# Before torch is imported: small tensors are slower on many threads, and CI machines are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What fails after a run has ended fails its test.
os.environ["VIT_STRICT"] = "1"

import pytest

from vit.runs import finishers

# Wall seconds of SPEED_TRIAL on two quiet cores of 2.5 GHz.
QUIET_SECONDS = 1.0
SPEED_TRIAL = "sum(i * i % 7 for i in range(5_000_000))"
TEST_SECONDS = 300
FACTOR = pytest.StashKey[float]()
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")
ROWS = finishers.rows


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forgets the rendezvous of a run in this process: its port would be taken in the next test.

    The finishers of a run take four times as long as a small run: only tests with the fixture
    `finishing` call them.
    """
    for name in RENDEZVOUS:
        os.environ.pop(name, None)
    asked = "finishing" in getattr(item, "fixturenames", ())
    finishers.rows = ROWS if asked else lambda table: {}


@pytest.fixture(scope="session")
def finishing() -> None:
    """The finishers of a run are called in this process, as they are for users."""


@pytest.hookimpl(trylast=True)  # after the fixtures' own
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends loading workers, and returns the memory of a file's tests: `vit` in this process keeps
    all that it has freed."""
    # A loader that an error has left is found behind its queues by the collector, which would wait
    # for each of its workers, five seconds.
    for child in filter(lambda child: child.daemon, active_children()):
        while child.is_alive():
            child.terminate()
            child.join(0.1)
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        if sys.platform == "linux":
            getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # of glibc


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Says which signal ended a worker of pytest-xdist; -9 is most often a lack of memory."""
    if error is not None:
        status = node.gateway._io.popen.wait(10)
        print(f"\n{node.gateway.id} ended with status {status}", flush=True)


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Measures how many times slower than a quiet machine this one is; never less than 1.

    Processes that the tests start and interrupt would inherit an ignored SIGINT, which a shell
    gives to what it runs in the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", SPEED_TRIAL], check=True)
    config.stash[FACTOR] = max(1.0, (time.monotonic() - start) / QUIET_SECONDS)
    if config.getoption("timeout", None) is None:
        config.option.timeout = TEST_SECONDS * config.stash[FACTOR]


@pytest.fixture(scope="session")
def deadline(pytestconfig: pytest.Config) -> Callable[[float], float]:
    """Timeout on this machine for what takes at most `seconds` on a quiet one."""
    return lambda seconds: seconds * pytestconfig.stash[FACTOR]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Indices and downloads of a test go into its own folder."""
    with tempfile.TemporaryDirectory(prefix="cache-") as cache:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        monkeypatch.delenv("VIT_CACHE", raising=False)
        # Published weights come from a server of the test's own, or not at all.
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        yield Path(cache)
