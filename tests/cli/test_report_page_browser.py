"""The page of `ultramon report` in a real browser: on a screen, on a phone, on paper."""

import re

import pytest
from helpers.planted_transcripts import (
    example_machine,
    example_survey,
    held_beside,
    read_file,
    used,
)
from helpers.transcript_lines import prompt
from helpers.web_page import browser  # noqa: F401

from ultramon.cli.views.report_page import report_page

DAY = "2026-11-{:02d}T10:10:00Z"


def many_sessions(root):
    """The example with 193 further sessions of five projects, forty files and three servers."""
    machine = example_machine(root)
    for number in range(193):
        day = DAY.format(1 + number % 20)
        project = f"/home/dev/{('shop', 'web', 'infra', 'docs', 'a-long-name-' * 4)[number % 5]}"
        servers = ("github", "linear", "sentry")[: number % 4]
        machine.write(
            f"{number:08x}-77aa-4c3e-9d10-5be0c1d2e3f4",
            prompt(f"Part {number}: " + "move the orders to the new schema " * 3, timestamp=day),
            *held_beside(project, day, servers),
            used("m", 9_800, at=day),
            *read_file(f"{project}/src/{number % 40}.py", "t1", 20_000, day),
            used("m1", 20_000 + 900 * number, at=day),
            project=project,
        )
    return machine


@pytest.fixture(scope="module", params=[example_machine, many_sessions])
def page_file(request, tmp_path_factory):
    """The page of a machine with seven sessions, and of one with two hundred."""
    root = tmp_path_factory.mktemp("machine")
    path = root / "r.html"
    path.write_text(report_page(example_survey(request.param(root))), encoding="utf-8")
    return path


@pytest.fixture
def open_page(browser, page_file):
    """Open the page in a window of its own; what the console says is an error."""
    contexts, said = [], []

    def open_(width=1280, height=800, scheme="light"):
        viewport = {"width": width, "height": height}
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.goto(page_file.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []


def bottom(page, selector):
    box = page.locator(selector).first.bounding_box()
    return box["y"] + box["height"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_holds_the_sentence_and_what_to_remove(open_page, scheme):
    """Without scrolling: the sentence, what stands in every request, and the costs of projects."""
    page = open_page(scheme=scheme)
    assert bottom(page, "h1") < 200
    assert bottom(page, "section:first-child .rows") < 800
    assert bottom(page, "section:nth-child(2) .rows") < 800
    assert page.locator(".sessions > .line").bounding_box()["y"] < 1_000
    colours = page.evaluate(
        "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
    )
    light = [sum(map(int, re.findall(r"\d+", one)[:3])) for one in colours]
    assert (light[0] < light[1]) == (scheme == "light")


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_no_page_scrolls_sideways(open_page, width):
    """Closed and with everything open."""
    page = open_page(width)
    wider = "document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(wider) <= 0
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate(wider) <= 0


def test_a_session_is_one_line_that_opens_its_timeline(open_page):
    """On a wide window as high as any other, and without a script."""
    page = open_page()
    heights = page.locator("summary.line").evaluate_all("all => all.map(one => one.offsetHeight)")
    assert len(heights) >= 7
    assert max(heights) < 36
    assert not page.locator(".timeline").first.is_visible()
    page.locator("summary.line").first.click()
    assert page.locator(".timeline").first.is_visible()
    assert not page.locator(".timeline").nth(1).is_visible()


def test_the_page_is_printed_on_two_sheets(open_page):
    """Of A4 and of US letter, from a dark screen and a narrow one too; closed lines stay closed."""
    for width, scheme in ((1280, "light"), (390, "dark")):
        page = open_page(width, scheme=scheme)
        for sheet in ("A4", "Letter"):
            printed = page.pdf(format=sheet)
            assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 2
        page.emulate_media(media="print")
        assert not page.locator(".timeline").first.is_visible()
        white = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert white == "rgb(255, 255, 255)"
