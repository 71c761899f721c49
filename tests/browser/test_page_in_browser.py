"""The report page in a real browser: nothing fails or is loaded, and what can be used works."""

from __future__ import annotations

import pytest

from browsing import Opened

MOST_BYTES = 3_000_000


@pytest.mark.parametrize("name", ["large", "searched"])
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False)])
class TestEveryPage:
    def test_says_nothing_on_the_console_and_loads_nothing(
        self, browser, request, name, width, dark
    ):
        path = request.getfixturevalue(name)
        opened = Opened(browser, path, width, dark)
        assert browser.get_log("browser") == []
        assert [u for u in opened.requests() if not u.startswith("data:")] == [path.as_uri()]
        opened.shot(f"{path.stem}-{width}{'-dark' if dark else ''}")

    def test_is_no_wider_than_the_window(self, browser, request, name, width, dark):
        opened = Opened(browser, request.getfixturevalue(name), width, dark)
        assert opened.run("return document.documentElement.scrollWidth") <= width

    def test_has_its_pictures_drawn(self, browser, request, name, width, dark):
        opened = Opened(browser, request.getfixturevalue(name), width, dark)
        colors = opened.run(
            "const c=document.querySelector('#timeline-chart canvas');"
            "const d=c.getContext('2d').getImageData(0,0,c.width,c.height).data;"
            "const found=new Set();"
            "for(let i=0;i<d.length;i+=4) found.add([d[i]>>4,d[i+1]>>4,d[i+2]>>4].join());"
            "return found.size"
        )
        assert colors > 8
        assert opened.run("return document.querySelectorAll('#memory-chart path.layer').length") > 3
        assert opened.run("return document.querySelectorAll('#argument-rows svg.grid').length") > 5


def test_a_large_page_is_a_file_of_less_than_3_mb(large):
    assert large.stat().st_size < MOST_BYTES


def test_fields_filter_the_rows_of_tables(browser, large):
    opened = Opened(browser, large)
    rows = "#argument-rows tbody tr"
    every = len(opened.texts(rows))
    opened.type("#arguments-filter", "w_in PARAMS")
    assert 0 < len(opened.texts(rows)) < every
    assert all("w_in" in text for text in opened.texts(rows))
    opened.type("#arguments-filter", "")
    opened.type("#arguments-purpose", "inputs")
    assert all("batch" in text for text in opened.texts(rows))
    opened.type("#collectives-filter", "reduce_scatter data")
    found = opened.texts("#moves tbody tr")
    assert found and all("reduce_scatter" in text for text in found)


def test_the_timeline_zooms_by_buttons_and_keys(browser, large):
    opened = Opened(browser, large)
    whole = opened.shown()
    opened.run("document.querySelector('[data-zoom=in]').click()")
    near = opened.shown()
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    opened.press("ArrowRight")
    assert opened.shown()[0] > near[0]
    opened.press("+")
    assert opened.shown()[1] - opened.shown()[0] < near[1] - near[0]
    opened.press("Home")
    assert opened.shown() == whole
    opened.press("n")
    assert opened.texts("#timeline-live")[0].startswith(("convert", "gather", "all_gather"))


def test_the_theme_can_be_switched(browser, searched):
    opened = Opened(browser, searched)
    script = "return getComputedStyle(document.body).backgroundColor"
    before = opened.run(script)
    opened.run("document.getElementById('theme').click()")
    assert opened.run(script) != before


@pytest.mark.parametrize("width", [1200, 390])
def test_plans_stand_side_by_side(browser, several, width):
    opened = Opened(browser, several, width)
    assert browser.get_log("browser") == []
    assert opened.run("return document.documentElement.scrollWidth") <= width
    opened.type("#arguments-filter", "params")
    rows = opened.texts("#argument-rows tbody tr")
    assert rows == [] or all("params" in row for row in rows)
    opened.shot(f"several-{width}")


def test_a_search_has_its_curve_and_the_plans_beside_each_other(browser, searched):
    opened = Opened(browser, searched)
    assert opened.run("return document.querySelectorAll('[data-search] path.curve').length") == 1
    assert len(opened.texts("#search table tbody tr")) > 3


def test_what_was_refused_has_its_reason(browser, searched):
    row = Opened(browser, searched).texts("#refused tbody tr")[0]
    assert "w_in" in row and "3" in row


def test_everything_has_a_name_for_screen_readers(browser, searched):
    opened = Opened(browser, searched)
    unnamed = opened.run(
        "const all='button,input,select,svg[role=img],[tabindex],table';"
        "return [...document.querySelectorAll(all)]"
        ".filter(e => !(e.ariaLabel || e.textContent.trim() || e.querySelector('caption'))).length"
    )
    assert unnamed == 0
    assert opened.run("return document.documentElement.lang") == "en"
    levels = opened.run("return [...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
