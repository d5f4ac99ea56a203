"""The result of a replay: a timeline per agent, of bounded size for any recording."""

from __future__ import annotations

from datetime import datetime

from ultramon.state.models import Model

MAX_POINTS = 512
"""The most points of a timeline."""
MAX_EVENTS = 1_000
"""The most crossings and compactions listed; all are counted."""


class Event(Model):
    """What happened at one moment of the recording."""

    at: datetime | None
    """None when the recording has no times."""
    position: int
    """Readings taken before."""


class Crossing(Event):
    """A rung was reached."""

    level: str
    previous_level: str
    action: str
    tokens: int
    tokens_source: str
    usage_ratio: float
    context_limit: int
    next_rung: str | None
    turns_left: int | None
    """Turns that still end below the next rung: the middle. None when unknowable or at the top."""
    turns_low: int | None
    """Their low end."""
    turns_high: int | None
    """Their high end; None also where measurements bear none out."""


class Compaction(Event):
    """A window ended and the next began."""

    reason: str
    """``boundary``: the recording says so; ``fall``: the reports show it."""
    trigger: str | None
    tokens_before: int
    tokens_after: int | None


class Overflow(Event):
    """A request was refused: it was larger than the context window."""

    tokens: int
    """In the window at the last reading before it."""


class RungLine(Model):
    """One rung against the limit that held at the end."""

    name: str
    action: str
    usage_ratio: float
    tokens: int
    """The fewest that reach it."""


class Timeline(Model):
    """What a monitor would have reported about one agent."""

    id: str
    kind: str
    path: str
    model: str | None
    context_limit: int | None
    context_window: int | None
    limit_source: str
    limit_suspect: bool
    round_percent: bool
    """Whether the ladder decides on the rounded percentage."""
    rungs: tuple[RungLine, ...]
    started_at: datetime | None
    ended_at: datetime | None
    records: int
    reports: int
    broken_lines: int
    peak_tokens: int
    """The highest single report, or without reports the highest estimate."""
    peak_source: str
    """``reported`` or ``estimated``."""
    epochs: int
    crossings: tuple[Crossing, ...]
    crossing_count: int
    compactions: tuple[Compaction, ...]
    compaction_count: int
    overflows: tuple[Overflow, ...]
    overflow_count: int
    by_source: dict[str, int]
    """Tokens that entered the windows, largest first."""
    points: tuple[int, ...]
    """Tokens in the window, highest of each stretch."""
    readings: int
    readings_per_point: int
