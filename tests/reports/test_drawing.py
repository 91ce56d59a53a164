import warnings
from io import BytesIO

import matplotlib
import numpy as np
import pytest
from PIL import Image

from vit.reports.drawing import DARK, LIGHT, new_figure, png, tiled
from vit.reports.figures import confusion
from vit.reports.lettering import drawable, legible, text_style
from vit.reports.page import plot, thumbnail


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


def test_a_plot_is_as_large_on_the_page_as_on_paper():
    assert plot(lambda theme: new_figure(3, 2, theme), "a figure").size == (288, 192)


def test_small_images_stay_pixels_and_photographs_become_jpeg():
    small, large = (thumbnail(Image.new("RGB", (side, side))) for side in (8, 200))
    assert small.startswith('<img class="pixels" src="data:image/png;base64,')
    assert large.startswith('<img src="data:image/jpeg;base64,')


def test_drawing_changes_no_global_setting():
    before = dict(matplotlib.rcParams)
    png(confusion(np.eye(4), ["a", "b", "$c$", "猫"]), crop=True)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    "name", ["cat", "Käse", "猫", "狗 <b>", "كلب", "$x^$", "$5", "tab\tand\nline", "\udcff \ue000"]
)
def test_any_name_is_drawn_without_a_warning(name):
    figure = new_figure(2, 1, LIGHT)
    for bold in (True, False):
        figure.text(0.5, 0.5, legible(name), **text_style(10, bold=bold))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png(figure)


def test_what_no_font_can_draw_becomes_question_marks():
    assert legible("dir/a\udcffb\ue000.jpg") == "dir/a?b?.jpg"
    assert legible("two\n lines") == "two lines" and drawable("two\n lines")
    assert not drawable("bytes \udcff")


def test_tiles_are_a_gap_of_paper_apart():
    tiles = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((2, 3, 3), np.uint8)
    picture = tiled(tiles.reshape(2, 3, 2, 3, 3), 1, np.array([7, 8, 9]))
    assert picture.shape == (5, 11, 3)
    for i in range(6):
        top, left = 3 * (i // 3), 4 * (i % 3)
        assert (picture[top : top + 2, left : left + 3] == i).all()
    assert (picture[2] == [7, 8, 9]).all() and (picture[:, [3, 7]] == [7, 8, 9]).all()
