import subprocess
import sys
from io import BytesIO

import matplotlib
import numpy as np
import pytest
from PIL import Image

from vit.reports.drawing import DARK, LIGHT, new_figure, png
from vit.reports.figures import confusion


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_paper_is_the_themes(theme):
    drawn = pixels(png(new_figure(1, 1, theme)))
    assert (drawn == [int(theme.paper[i : i + 2], 16) for i in (1, 3, 5)]).all()


def test_a_figure_has_its_size_and_a_crop_loses_its_margins():
    figure = new_figure(4, 3, LIGHT, dpi=100)
    figure.text(0.5, 0.5, "x")
    assert pixels(png(figure)).shape == (300, 400, 3)
    assert pixels(png(figure, crop=True)).shape < (60, 60, 3)


def test_drawing_changes_no_global_setting():
    before = dict(matplotlib.rcParams)
    png(confusion(np.eye(4), ["a", "b", "$c$", "猫"]), crop=True)
    assert dict(matplotlib.rcParams) == before


def test_the_room_needs_neither_torch_nor_lightning_nor_pyplot():
    code = (
        "import sys, vit.reports.results\n"
        "names = ('torch', 'lightning', 'torchvision', 'matplotlib.pyplot')\n"
        "print([n for n in names if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
