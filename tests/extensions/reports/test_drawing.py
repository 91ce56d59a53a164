"""Names of any script are drawn, or replaced by what can be drawn; figures become elements."""

import re
import warnings
from xml.etree import ElementTree

import pytest

from vit.extensions.reports.drawing import LIGHT, new_figure, png, style_axes, svg
from vit.extensions.reports.lettering import drawable, legible, text_style


@pytest.mark.parametrize(
    "name", ["cat", "Käse", "猫", "狗 <b>", "كلب", "$x^$", "$5", "tab\tand\nline", "\udcff \ue000"]
)
def test_any_name_is_drawn_without_a_warning(name):
    figure = new_figure(2, 1)
    for bold in (True, False):
        figure.text(0.5, 0.5, legible(name), **text_style(10, bold=bold))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png(figure)


def test_what_no_font_can_draw_becomes_question_marks():
    assert legible("dir/a\udcffb\ue000.jpg") == "dir/a?b?.jpg"
    assert legible("two\n lines") == "two lines" and drawable("two\n lines")
    assert not drawable("bytes \udcff")


def test_a_figure_on_a_page_has_its_variables_for_colours_and_unchanged_words():
    figure = new_figure(2, 1)
    axes = figure.add_subplot()
    style_axes(axes)
    axes.plot([0, 1 / 3], [0.005, 0.015], color=LIGHT.second)
    axes.text(0, 0.01, "0.000125 <b>", color=LIGHT.ink)
    element = svg(figure, 'a "b" & c')
    assert "0.000125 &lt;b&gt;" in element and "http" not in element and "style>" not in element
    assert {"var(--second)", "var(--ink)", "var(--line)", "var(--muted)"} <= set(
        re.findall(r"var\(.*?\)", element)
    )
    assert LIGHT.second not in element
    root = ElementTree.fromstring(element)
    assert root.attrib["aria-label"] == 'a "b" & c' and root.attrib["width"] == "192"
    page = element + svg(figure, "another")  # where no name may stand twice
    names = re.findall(r' id="(.*?)"', page)
    assert names and len(names) == len(set(names))
    assert set(re.findall(r"[\"(]#(\w+)", page)) <= set(names)
