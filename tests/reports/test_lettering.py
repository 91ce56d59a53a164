import warnings

import pytest

from vit.reports.drawing import LIGHT, new_figure, png
from vit.reports.lettering import legible, nearest_legible, text_style

UNDRAWABLE = "\U00012000\ue000"  # cuneiform and a private character: in no usual font


@pytest.mark.parametrize(
    "name",
    ["cat", "Käse", "猫", "狗 <b>", "كلب", "$x^$", "$5", "tab\tand\nline", UNDRAWABLE, "\udcff"],
)
def test_any_name_is_drawn_without_a_warning(name):
    figure = new_figure(2, 1, LIGHT)
    shown = legible(name, "#3")
    figure.text(0.5, 0.5, shown, **text_style(shown, 10, bold=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png(figure)


def test_names_that_no_font_can_draw_become_their_substitute():
    assert legible(UNDRAWABLE, "#3") == "#3"
    assert legible("bytes \udcff", "#3") == "#3"
    assert legible("", "#3") == "#3"
    assert legible("two\n lines", "#3") == "two lines"


def test_a_text_may_take_its_characters_from_several_fonts():
    shown = "caf\u00e9 \u1d81"  # matplotlib ships the last letter in STIXGeneral alone
    assert legible(shown, "#3") == shown
    style = text_style(shown, 10, bold=True)
    first, *others = style["fontproperties"].get_family()
    assert first == "DejaVu Sans" and len(others) == 1
    figure = new_figure(2, 1, LIGHT)
    figure.text(0.5, 0.5, shown, **style)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = png(figure)
    figure.texts[0].set_fontfamily(first)
    with pytest.warns(UserWarning, match="missing from font"):
        assert png(figure) != drawn


def test_dollar_signs_are_letters_not_mathematics():
    assert text_style("$x^$", 10)["parse_math"] is False


def test_an_undrawable_character_of_a_file_name_becomes_a_question_mark():
    assert nearest_legible("dir/a\udcffb\ue000.jpg") == "dir/a?b?.jpg"
