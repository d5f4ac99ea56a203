"""Tokens over time, and jobs over time, as SVG that fits any width.

Places are percentages of the width, so that a narrow page squeezes time and no shape or text.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ultramon.pictures.elements import Element, element

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A window filled to the brim must not look cut off.
_HEADROOM = 1.08
_CHART_HEIGHT = 200
_AXIS_HEIGHT = 22
_LANE_HEIGHT = 22
_LABEL_HEIGHT = 13
_LABEL_WIDTH = 104
_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800, 2_592_000,
)  # fmt: skip
"""Seconds between two labels of the axis."""
_MOST_LABELS = 6
_GLYPHS = {
    "compaction": "M0 -6 L6 0 L0 6 L-6 0 Z",
    "handoff": "M-5 -5 L6 0 L-5 5 Z",
    "kill": "M-6 -4 L-4 -6 L0 -2 L4 -6 L6 -4 L2 0 L6 4 L4 6 L0 2 L-4 6 L-6 4 L-2 0 Z",
    "rejected": "M-5 -1.5 H5 V1.5 H-5 Z",
    "verified": "M-6 0 L-4 -2 L-2 0 L4 -6 L6 -4 L-2 4 Z",
    "warning": "M0 -5 L5 5 H-5 Z",
    "critical": "M0 -6 L6 5 H-6 Z",
}
GLYPHS = tuple(_GLYPHS)
"""The kinds of marks."""


class Point(NamedTuple):
    """One reading."""

    at: float
    """Epoch seconds."""
    tokens: int
    epoch: int


class Rung(NamedTuple):
    """A line at a number of tokens."""

    name: str
    tokens: float


class Mark(NamedTuple):
    """Something that happened."""

    at: float
    """Epoch seconds."""
    kind: str
    """One of `GLYPHS`."""
    words: str


class Span(NamedTuple):
    """A stretch of time in a lane."""

    begin: float
    """Epoch seconds."""
    end: float
    kind: str
    """Its class in the style sheet."""
    words: str


class Lane(NamedTuple):
    """One line of a plan of jobs."""

    name: str
    link: str | None
    facts: str
    """Beside the name."""
    spans: Sequence[Span]
    marks: Sequence[Mark]


class _Scale:
    """Places of times, in percent of the width."""

    def __init__(self, begin: float, end: float) -> None:
        # At least a second long, so that a single reading has a place too.
        self.begin, self.end = begin, max(end, begin + 1.0)

    def at(self, moment: float) -> str:
        """Return the place of a time; times outside are drawn at the edge."""
        share = (moment - self.begin) / (self.end - self.begin)
        return f"{min(max(share, 0.0), 1.0) * 100:.2f}%"

    def labels(self) -> Iterator[tuple[float, str]]:
        """Yield round times and how they are written, UTC."""
        length = self.end - self.begin
        # A job of years still gets no more labels than that.
        longest = _STEPS[-1] * math.ceil(length / _STEPS[-1] / _MOST_LABELS)
        step = next((one for one in _STEPS if length / one <= _MOST_LABELS), longest)
        form = "%m-%d" if step >= 86_400 else "%H:%M:%S" if step < 60 else "%H:%M"
        moment = -(-self.begin // step) * step
        while moment <= self.end:
            yield moment, datetime.fromtimestamp(moment, UTC).strftime(form)
            moment += step


def glyph(kind: str) -> Element:
    """Draw the shape of a mark alone, for a legend."""
    return element(
        "svg",
        element("path", d=_GLYPHS[kind]),
        class_=f"glyph {kind}",
        viewBox="-8 -8 16 16",
        aria_hidden="true",
    )


def _placed(mark: Mark, scale: _Scale, top: float) -> Element:
    return element(
        "svg",
        element("title", mark.words),
        element("path", d=_GLYPHS[mark.kind]),
        class_=f"at {mark.kind}",
        x=scale.at(mark.at),
        y=top,
        overflow="visible",
    )


def _axis(scale: _Scale, top: float, height: float) -> Iterator[Element]:
    for moment, words in scale.labels():
        x = scale.at(moment)
        yield element("line", class_="grid-line", x1=x, x2=x, y1=0, y2=top)
        share = float(x[:-1])
        # A label that is centred at an edge would be cut off.
        anchor = "start" if share < 6 else "end" if share > 94 else "middle"
        yield element("text", words, class_="label", x=x, y=top + height - 6, text_anchor=anchor)


def token_chart(
    points: Sequence[Point],
    words: str,
    *,
    begin: float,
    end: float,
    limit_tokens: int | None = None,
    rungs: Sequence[Rung] = (),
    marks: Sequence[Mark] = (),
) -> Element:
    """Draw the tokens in a window over time.

    Args:
        points: Readings, oldest first; the line breaks where an epoch begins.
        words: What it shows, for those who cannot see it.
        begin: Epoch seconds at the left edge.
        end: At the right edge.
        limit_tokens: The context limit, drawn as a line; None = unknown.
        rungs: Further lines.
        marks: What happened, drawn above the curve.
    """
    scale = _Scale(begin, end)
    top_tokens = max(limit_tokens or 0, *(point.tokens for point in points), 1) * _HEADROOM

    def height(tokens: float) -> float:
        return round(_CHART_HEIGHT * (1 - tokens / top_tokens), 1)

    areas, lines = [], []
    for epoch in _epochs(points):
        # A percentage times ten is a place in the view box, which is 1,000 wide.
        corners = [(float(scale.at(point.at)[:-1]) * 10, height(point.tokens)) for point in epoch]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        bottom = f"{corners[-1][0]:.1f},{_CHART_HEIGHT} {corners[0][0]:.1f},{_CHART_HEIGHT}"
        areas.append(element("polygon", class_="area", points=f"{path} {bottom}"))
        lines.append(element("polyline", class_="curve", points=path))
    # The curve is a drawing of its own: only that is stretched, no text and no shape.
    drawn: list[Element] = [
        *_axis(scale, _CHART_HEIGHT, _AXIS_HEIGHT),
        element(
            "svg", *areas, *lines,
            viewBox=f"0 0 1000 {_CHART_HEIGHT}", width="100%", height=_CHART_HEIGHT,
            preserveAspectRatio="none",
        ),
    ]  # fmt: skip
    named = [Rung("limit", limit_tokens)] if limit_tokens else []
    labels = []
    free_below = 0.0
    for rung in sorted([*rungs, *named], key=lambda one: -one.tokens):
        y = height(rung.tokens)
        kind = "limit" if rung.name == "limit" else "rung"
        drawn.append(element("line", class_=kind, x1="0", x2="100%", y1=y, y2=y))
        # Where rungs lie close together, their names stand below each other.
        label_y = max(y + 4, free_below)
        free_below = label_y + _LABEL_HEIGHT
        label = f"{rung.name} {rung.tokens:,.0f}"
        labels.append(element("text", label, class_="label", x="0", y=round(label_y, 1)))
    drawn += [_placed(mark, scale, 12) for mark in marks]
    tall = _CHART_HEIGHT + _AXIS_HEIGHT
    plot = element(
        "svg", *drawn, class_="chart", width="100%", height=tall, role="img", aria_label=words
    )
    # Beside the plot: over it they would lie on the curve.
    beside = element("svg", *labels, class_="beside", width=_LABEL_WIDTH, height=tall)
    return element("div", plot, beside if labels else None, class_="token-chart")


def _epochs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the readings of each epoch; an epoch of one reading is a short line."""
    held: list[Point] = []
    for point in points:
        if held and point.epoch != held[-1].epoch:
            yield held
            held = []
        held.append(point)
    if held:
        yield held


def plan_chart(lanes: Sequence[Lane], words: str, *, begin: float, end: float) -> Element:
    """Draw lanes of time below each other, each with its name beside it: a Gantt chart.

    Args:
        lanes: From top to bottom.
        words: What it shows, for those who cannot see it.
        begin: Epoch seconds at the left edge.
        end: At the right edge.
    """
    scale = _Scale(begin, end)
    rows = []
    for lane in lanes:
        name = element("a", lane.name, href=lane.link) if lane.link else lane.name
        drawn: list[Element] = []
        for span in lane.spans:
            # At least 0.4 % wide: some seconds of a long job would not be seen.
            x, end_x = (float(scale.at(moment)[:-1]) for moment in (span.begin, span.end))
            drawn.append(
                element(
                    "rect",
                    element("title", span.words),
                    class_=f"span {span.kind}",
                    x=f"{x:.2f}%",
                    y=4,
                    width=f"{max(end_x - x, 0.4):.2f}%",
                    height=_LANE_HEIGHT - 8,
                    rx=3,
                )
            )
        drawn += [_placed(mark, scale, _LANE_HEIGHT / 2) for mark in lane.marks]
        spoken = [span.words for span in lane.spans] + [mark.words for mark in lane.marks]
        picture = element(
            "svg", *drawn, class_="lane", width="100%", height=_LANE_HEIGHT,
            role="img", aria_label="; ".join(spoken),
        )  # fmt: skip
        rows.append(
            element(
                "tr",
                element("th", name, scope="row"),
                element("td", lane.facts, class_="facts"),
                element("td", picture, class_="time"),
            )
        )
    axis = element(
        "svg", *_axis(scale, 0, _AXIS_HEIGHT), class_="lane", width="100%", height=_AXIS_HEIGHT,
        aria_hidden="true",
    )  # fmt: skip
    foot = element("tr", element("td"), element("td", class_="facts"), element("td", axis))
    body = element("tbody", *rows)
    return element("table", body, element("tfoot", foot), class_="plan", aria_label=words)
