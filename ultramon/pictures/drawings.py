"""Bars and timelines as SVG, without scripts and inline styles; colours come from the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.pictures.elements import Element, element

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 600.0, 80.0
_HEADROOM = 1.05
"""A window filled to the brim must not look cut off."""


def bar(ratio: float, words: str, *, ticks: Sequence[float] = ()) -> Element:
    """Draw a share as a bar.

    Args:
        ratio: 0.0-1.0; what lies outside is drawn as its end.
        words: What it shows, for those who cannot see it.
        ticks: Ratios to mark.
    """
    width = min(max(ratio, 0.0), 1.0) * 100
    marked = [
        element("line", class_="tick", x1=f"{tick * 100:.1f}", x2=f"{tick * 100:.1f}", y1=0, y2=8)
        for tick in ticks
    ]
    return element(
        "svg",
        element("rect", class_="track", width="100", height="8"),
        element("rect", class_="fill", width=f"{width:.1f}", height="8"),
        *marked,
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )


def timeline(
    points: Sequence[int],
    words: str,
    *,
    limit_tokens: int | None = None,
    marks: Sequence[int] = (),
    lines: Sequence[float] = (),
) -> Element | None:
    """Draw tokens over time as an area; None without points.

    Args:
        points: Tokens in the window, from left to right.
        words: What it shows, for those who cannot see it.
        limit_tokens: The context limit, drawn as a line; None = unknown.
        marks: Indices of points at which the window was emptied.
        lines: Ratios of the limit to draw fainter lines at.
    """
    if not points:
        return None
    step = _WIDTH / len(points)
    top = max(limit_tokens or 0, *points, 1) * _HEADROOM

    def height(tokens: float) -> str:
        return f"{_HEIGHT * (1 - tokens / top):.1f}"

    def across(class_: str, tokens: float) -> Element:
        at = height(tokens)
        return element("line", class_=class_, x1="0.0", x2=f"{_WIDTH:.1f}", y1=at, y2=at)

    corners = [f"0,{_HEIGHT:.0f}"]
    for number, tokens in enumerate(points):
        # Steps, not slopes: between two readings nothing was measured.
        corners += [f"{step * x:.1f},{height(tokens)}" for x in (number, number + 1)]
    corners.append(f"{_WIDTH:.0f},{_HEIGHT:.0f}")
    drawn = [element("polygon", class_="fill", points=" ".join(corners))]
    for number in marks:
        x = f"{step * number:.1f}"
        drawn.append(element("line", class_="mark", x1=x, x2=x, y1="0", y2=f"{_HEIGHT:.0f}"))
    if limit_tokens is not None:
        drawn += [across("rung", ratio * limit_tokens) for ratio in lines]
        drawn.append(across("limit", limit_tokens))
    return element(
        "svg",
        *drawn,
        class_="timeline",
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )
