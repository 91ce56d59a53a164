import numpy as np
import pytest
from PIL import Image

from vit.reports.drawing import LIGHT, PNG_DPI, new_figure, png
from vit.reports.page import Card, beside, cards, code, facts, page, picture, section, table


def test_what_is_empty_leaves_nothing_behind():
    assert table(["a"], []) == facts([]) == cards([]) == beside("", "") == ""
    assert section("Title", "", "") == ""
    assert "<h2>Title</h2>" in section("Title", "", code("x"))


@pytest.mark.parametrize("make", [code, lambda t: table([t], [[t]]), lambda t: facts([(t, t)])])
def test_text_is_escaped_wherever_it_stands(make):
    html = make("<i>&'\"")
    assert "<i>" not in html and "&lt;i&gt;&amp;&#x27;&quot;" in html


def test_the_title_of_the_page_is_escaped():
    assert "<title>a &lt;b&gt;</title>" in page("a <b>", [])


def test_numbers_are_right_aligned_and_long_names_wrap():
    html = table(["name", "n"], [["a name of more than one word", "1"]])
    assert '<td class="long">a name' in html and '<td class="number">1' in html
    assert "<td>cat</td>" in table(["name", "n"], [["cat", "1"]])


def test_a_picture_is_as_large_on_the_page_as_on_paper():
    content = png(new_figure(3, 2, LIGHT))
    assert 'width="288" height="192"' in picture(content, content, "a <figure>")
    assert PNG_DPI > 96 and 'alt="a &lt;figure&gt;"' in picture(content, content, "a <figure>")


def test_small_images_stay_pixels_and_photographs_become_jpeg():
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    small, large = (
        cards([Card(image=image, said="cat", share="9 %", true="dog", name="a/b_c.jpg")])
        for image in (Image.new("RGB", (8, 8)), Image.fromarray(noise))
    )
    assert 'class="pixels" src="data:image/png;base64,' in small
    assert 'src="data:image/jpeg;base64,' in large and "pixels" not in large
    assert "a/<wbr>b_<wbr>c.jpg" in small
