import warnings
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from vit.extensions.reports.drawing import LIGHT, new_figure, png, tiled
from vit.extensions.reports.lettering import drawable, legible, text_style
from vit.extensions.reports.page import thumbnail


def test_a_figure_has_its_size_and_a_crop_loses_its_margins():
    figure = new_figure(4, 3, LIGHT, dpi=100)
    figure.text(0.5, 0.5, "x")
    assert Image.open(BytesIO(png(figure))).size == (400, 300)
    assert Image.open(BytesIO(png(figure, crop=True))).size < (60, 60)


def test_small_images_stay_pixels_and_photographs_become_jpeg():
    small, large = (thumbnail(Image.new("RGB", (side, side))) for side in (8, 200))
    assert small.startswith('<img class="pixels" src="data:image/png;base64,')
    assert large.startswith('<img src="data:image/jpeg;base64,')


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
    assert (picture[3:, 8:] == 5).all()
    assert (picture[2] == [7, 8, 9]).all() and (picture[:, [3, 7]] == [7, 8, 9]).all()
