"""Names of any script are drawn, or replaced by what can be drawn."""

import warnings

import pytest

from vit.extensions.reports.drawing import LIGHT, new_figure, png
from vit.extensions.reports.lettering import drawable, legible, text_style


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
