"""Peak memory in a process of its own: only one layer's weights exist at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, torch, vit
from vit import inspection

def megabytes(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0]) / 1024

model = vit.create_model("vit_b16", image_size=384).eval()
images = torch.randn(1, 3, 384, 384)
function, *arguments = eval(sys.argv[1])
function(model, images[..., :32, :32], *arguments)  # kernels and libraries are loaded once
open("/proc/self/clear_refs", "w").write("5")  # VmHWM restarts from here
before = megabytes("VmRSS")
result = function(model, images, *arguments)
print(megabytes("VmHWM") - before)
"""
NEEDS = {
    "(inspection.attention, None)": 300,
    "(inspection.rollout,)": 100,
    "(inspection.gradient_rollout, 0)": 300,
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no memory peaks in /proc")
@pytest.mark.parametrize("call", NEEDS)
def test_twelve_layers_at_384_pixels_stay_within(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, call], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 5 < float(done.stdout) < NEEDS[call]
