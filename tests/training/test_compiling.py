"""`--model.compile true`: where compiled code is kept, and what is said without a compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch._inductor.config as inductor

from vit.errors import UserError
from vit.training import compiling
from vit.training.compiling import FOLDER, compiled_folder, prepare_compiling


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIT_CACHE", str(tmp_path))
    monkeypatch.setenv(FOLDER, "")  # so that it is put back after the test
    monkeypatch.delenv(FOLDER)


def test_code_is_kept_in_the_cache(tmp_path: Path) -> None:
    prepare_compiling("cuda")
    assert Path(os.environ[FOLDER]) == compiled_folder()
    assert compiled_folder().is_relative_to(tmp_path)


def test_a_folder_that_the_user_chose_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "theirs"))
    prepare_compiling("cuda")
    assert os.environ[FOLDER] == str(tmp_path / "theirs")


def test_each_kind_of_cpu_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {compiled_folder()}
    for name, flags in (("A", "avx2"), ("A", "avx2 avx512f"), ("B", "avx2")):
        monkeypatch.setattr(compiling, "cpu_name", lambda name=name: name)
        monkeypatch.setattr(compiling, "cpu_flags", lambda flags=flags: flags)
        folders.add(compiled_folder())
        assert compiled_folder() in folders
    assert len(folders) == 4


def test_without_a_compiler_one_line_says_so(make_data, make_model, make_trainer) -> None:
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        prepare_compiling("cuda")
        with pytest.raises(UserError, match=r"needs a C\+\+ compiler, and none was found") as error:
            make_trainer(max_epochs=1).fit(make_model(compile=True), make_data())
        assert "\n" not in str(error.value)
        make_trainer(max_epochs=1).fit(make_model(), make_data())


CODE = """
import json, sys, torch
from torch._dynamo.utils import counters
from vit.training.compiling import prepare_compiling
prepare_compiling("cpu")
model = torch.nn.Linear(4, 4)
model.compile()
model(torch.ones(2, 4)).sum().backward()
print(json.dumps(counters["inductor"] | counters["aot_autograd"]))
"""


@pytest.mark.slow
def test_a_second_process_takes_the_code_of_the_first() -> None:
    try:
        prepare_compiling("cpu")
    except UserError:
        pytest.skip("no C++ compiler")
    del os.environ[FOLDER]
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = found
    assert first.get("autograd_cache_miss") and not first.get("autograd_cache_hit")
    assert second.get("autograd_cache_hit") and not second.get("autograd_cache_miss")
    assert any(path.is_file() for path in compiled_folder().rglob("*"))
