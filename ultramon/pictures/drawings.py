"""Bars and timelines as SVG, without scripts and inline styles; colours come from the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ultramon.pictures.elements import Element, element
from ultramon.pictures.time_axis import TimeAxis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ultramon.state.history import HistoryPoint

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
        element("rect", class_="track", width="100", height="8", rx="2"),
        element("rect", class_="fill", width=f"{width:.1f}", height="8", rx="2"),
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
    spans = ((step * at, step * (at + 1), tokens) for at, tokens in enumerate(points))
    upright = [(step * at, "mark", None) for at in marks]
    return _draw(spans, words, limit_tokens, upright, [(ratio, None) for ratio in lines])


class Mark(NamedTuple):
    """A moment to mark in a timeline."""

    at: float
    """Unix time, seconds."""
    words: str
    """What happened, shown where a pointer rests on it."""
    kind: str = "event"
    """Its class in the style of the page, never a text of somebody else, e.g. ``handoff``."""


def timeline_svg(
    points: Sequence[HistoryPoint],
    words: str,
    *,
    limit_tokens: int | None = None,
    rungs: Sequence[tuple[float, str]] = (),
    marks: Sequence[Mark] = (),
    until: float | None = None,
) -> Element | None:
    """Draw the readings of an agent by their times; None without readings.

    Each lasts until the next one. Where an epoch begins a line of the class ``epoch`` is drawn,
    with the fall in words.

    Args:
        points: Oldest first.
        words: What it shows, for those who cannot see it.
        limit_tokens: The context limit, drawn as a line; None = unknown.
        rungs: Ratios of the limit to draw fainter lines at, with their names.
        marks: Further moments; one outside the readings is drawn at their end.
        until: Right end, Unix time, where it is later than the last reading; None = that reading.
    """
    if not points:
        return None
    axis = TimeAxis(points, until)
    upright = [
        (
            axis.place(axis.times[number], _WIDTH),
            "mark epoch",
            f"epoch {points[number].epoch}: {points[number - 1].used_tokens:,} tokens before,"
            f" {points[number].used_tokens:,} after",
        )
        for number in axis.epoch_starts
    ]
    upright += [(axis.place(one.at, _WIDTH), f"mark {one.kind}", one.words) for one in marks]
    named = [(ratio, f"{name}: {ratio:.0%} of the limit") for ratio, name in rungs]
    return _draw(axis.spans(_WIDTH), words, limit_tokens, upright, named)


def _draw(
    spans: Iterable[tuple[float, float, int]],
    words: str,
    limit_tokens: int | None,
    upright: Sequence[tuple[float, str, str | None]],
    rungs: Sequence[tuple[float, str | None]],
) -> Element:
    """Draw counts of tokens, each from a left to a right end, with lines across and upright."""
    known = list(spans)
    top = max(limit_tokens or 0, *(tokens for _, _, tokens in known), 1) * _HEADROOM

    def height(tokens: float) -> str:
        return f"{_HEIGHT * (1 - tokens / top):.1f}"

    def across(class_: str, tokens: float, title: str | None = None) -> Element:
        at = height(tokens)
        return _line(class_, (0.0, _WIDTH), (at, at), title)

    corners = [f"0,{_HEIGHT:.0f}"]
    for left, right, tokens in known:
        corners += [f"{x:.1f},{height(tokens)}" for x in (left, right)]
    corners.append(f"{_WIDTH:.0f},{_HEIGHT:.0f}")
    drawn = [element("polygon", class_="fill", points=" ".join(corners))]
    for x, class_, title in upright:
        drawn.append(_line(class_, (x, x), ("0", f"{_HEIGHT:.0f}"), title))
    if limit_tokens is not None:
        drawn += [across("rung", ratio * limit_tokens, title) for ratio, title in rungs]
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


def _line(
    class_: str, across: tuple[float, float], heights: tuple[str, str], title: str | None
) -> Element:
    return element(
        "line",
        None if title is None else element("title", title),
        class_=class_,
        x1=f"{across[0]:.1f}",
        x2=f"{across[1]:.1f}",
        y1=heights[0],
        y2=heights[1],
    )
