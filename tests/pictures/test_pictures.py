"""Pages and drawings: whatever text they hold stays text, and nothing is loaded."""

import base64
import hashlib
import re

import pytest
from helpers.html import HOSTILE, Parsed
from hypothesis import given
from hypothesis import strategies as st

from ultramon.pictures.charts import Point, token_chart
from ultramon.pictures.drawings import bar, timeline
from ultramon.pictures.elements import element, to_html
from ultramon.pictures.page import CONTENT_POLICY, write_page
from ultramon.system.terminal_text import sanitize


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_text(text):
    """In an element, behind one, and in an attribute."""
    html = to_html(element("p", text, element("b", text), text, title=text))
    html.encode("utf-8")
    parsed = Parsed(html)
    assert parsed.tags == ["p", "b"]
    assert [name for _, name, _ in parsed.attributes] == ["title"]
    assert "".join(parsed.texts) == sanitize(text) * 3


@given(st.text(), st.text())
def test_any_text_comes_back_as_it_was_sanitized(text, attribute):
    """A browser reads what was put in, with what is invisible made visible."""
    parsed = Parsed(to_html(element("p", text, title=attribute)))
    assert "".join(parsed.texts) == sanitize(text)
    assert parsed.attributes == [("p", "title", sanitize(attribute))]


def test_children_keep_their_order():
    """Texts and elements as they are given; what is None is left out."""
    html = to_html(element("p", "a", element("b", "c"), None, "d", "e", class_="x", data_y=None))
    assert html == '<p class="x">a<b>c</b>de</p>'


def test_a_page_loads_nothing_and_runs_nothing():
    """Its policy allows its own style, by that style's hash, and nothing else."""
    page = write_page("A <title>", element("p", "text"), bar(0.5, "half"))
    parsed = Parsed(page)
    assert "script" not in parsed.tags
    assert parsed.tags.count("style") == 1
    assert ("meta", "content", CONTENT_POLICY) in parsed.attributes
    assert not {name for _, name, _ in parsed.attributes} & {"src", "href", "style", "onload"}
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{hashed}'" in CONTENT_POLICY
    assert CONTENT_POLICY.startswith("default-src 'none';")
    assert "url(" not in style
    assert "@import" not in style


def test_a_page_suits_phones_and_the_dark():
    """It takes the width of the device, and both schemes of colours."""
    page = write_page("t")
    assert page.startswith("<!DOCTYPE html>\n<html lang=")
    assert "width=device-width" in page
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize("ratio", [-1.0, 0.0, 0.3, 1.0, 7.5])
def test_a_bar_stays_within_its_track(ratio):
    """A wrong share is drawn as the nearest right one."""
    widths = [float(rect.get("width")) for rect in bar(ratio, "x")]
    assert widths[0] == 100
    assert 0 <= widths[1] <= 100


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=120),
    st.none() | st.integers(1, 10**9),
)
def test_a_timeline_lies_within_its_picture(points, limit):
    """Every corner, line and mark, whatever was reported."""
    marks = range(0, len(points), 3)
    svg = timeline(points, "words", limit_tokens=limit, marks=marks, lines=(0.75, 0.95))
    width, height = map(float, svg.get("viewBox").split()[2:])
    corners = [tuple(map(float, one.split(","))) for one in svg[0].get("points").split()]
    assert len(corners) == 2 * len(points) + 2
    for line in svg.findall("line"):
        corners += [(float(line.get(f"x{end}")), float(line.get(f"y{end}"))) for end in (1, 2)]
    assert all(0 <= x <= width + 0.1 and 0 <= y <= height for x, y in corners)
    assert svg.get("aria-label") == "words"
    assert len(svg.findall("line")) == len(marks) + (3 if limit else 0)


@given(st.floats(0, 10**11), st.floats(0, 10**11))
def test_the_axis_of_a_chart_has_few_labels(begin, length):
    """A second or three thousand years, as a damaged history has them."""
    chart = token_chart([Point(begin, 1, 1)], "words", begin=begin, end=begin + length)
    labels = [one for one in chart.iter("text") if one.get("text-anchor")]
    assert len(labels) <= 7


def test_without_points_there_is_no_timeline():
    """Nothing was reported, so nothing is drawn."""
    assert timeline([], "words") is None
