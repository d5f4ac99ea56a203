"""One recording as `ultramon replay` shows it: facts, chart, rungs reached, what filled it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from ultramon.cli.output import (
    action_style,
    field,
    make_table,
    percent,
    plural,
    tokens,
    usage_bar,
)
from ultramon.cli.views.replay_chart import plot
from ultramon.context.limits import is_assumed, limit_words
from ultramon.recordings.source_words import home_relative, tokens_by_words
from ultramon.recordings.timeline import Crossing, Overflow
from ultramon.state.runway import Runway
from ultramon.state.usage_percent import exact_ratio, whole_percent
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ultramon.recordings.timeline import Compaction, Timeline

_MAX_ROWS = 24
_MAX_SOURCES = 12
_BAR_WIDTH = 10
_MOMENT = "%Y-%m-%d %H:%M:%S"


def print_timeline(console: Console, timeline: Timeline, *, with_plot: bool) -> None:
    """Print one timeline."""
    console.print(Text(field(timeline.id), "bold"), soft_wrap=True)
    console.print(Text("\n".join(_facts(timeline))), soft_wrap=True)
    ascii_only = console.options.ascii_only
    lines = plot(timeline, min(console.width, 120), ascii_only=ascii_only) if with_plot else []
    if lines:
        console.print()
        for text in lines:
            console.print(text, no_wrap=True, overflow="crop")
    console.print()
    console.print(_events_table(timeline))
    if timeline.by_source:
        console.print()
        console.print(_sources_table(timeline, ascii_only=ascii_only))


def _facts(timeline: Timeline) -> list[str]:
    """Return a few lines on the recording and its result."""
    limit, peak = timeline.context_limit, timeline.peak_tokens
    limited, of_limit = "limit unknown", ""
    if limit is not None:
        limited = f"limit {limit_words(limit, timeline.limit_source)}"
        if not is_assumed(timeline.limit_source):
            limited = f"limit {tokens(limit)} tokens ({timeline.limit_source})"
        of_limit = f", {whole_percent(peak / limit, rounds=timeline.round_percent)} % of the limit"
    if timeline.limit_suspect:
        limited += ", suspect: more was reported than the model should hold"
    happened = plural(timeline.compaction_count, "compaction")
    if timeline.overflow_count:
        happened += f", {plural(timeline.overflow_count, 'overflow')}"
    reports = plural(timeline.reports, "report") if timeline.reports else "no reports"
    read = f"{plural(timeline.records, 'record')}, {reports}"
    if timeline.broken_lines:
        read += f", {plural(timeline.broken_lines, 'broken line')}"
    if timeline.started_at is not None:
        read += f", {timeline.started_at:{_MOMENT}} to {timeline.ended_at:{_MOMENT}} UTC"
    return [
        f"{timeline.kind}, {sanitize(home_relative(timeline.path))}",
        read,
        f"model {field(timeline.model) or 'not named'}, {limited}",
        f"peak {tokens(peak)} tokens {timeline.peak_source}{of_limit}; {happened}",
    ]


def _events_table(timeline: Timeline) -> Table:
    """List rungs reached and compactions in the order they happened."""
    table = make_table()
    for name in ("when", "what"):
        table.add_column(name, no_wrap=True)
    for name in ("tokens", "usage"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how")
    started, ended = timeline.started_at, timeline.ended_at
    one_day = started is not None and ended is not None and started.date() == ended.date()
    clock = "%H:%M:%S" if one_day else "%m-%d %H:%M:%S"
    events: list[Crossing | Compaction | Overflow] = [
        *timeline.crossings,
        *timeline.compactions,
        *timeline.overflows,
    ]
    # A compaction takes the position of the first reading after it.
    events.sort(key=lambda event: (event.position, hasattr(event, "level")))
    for event in events[:_MAX_ROWS]:
        when = event.at.strftime(clock) if event.at else f"reading {event.position + 1:,}"
        what, style, count, share, how = _cells(event, rounds=timeline.round_percent)
        table.add_row(when, Text(what, style), tokens(count), Text(share, style), Text(how))
    total = timeline.crossing_count + timeline.compaction_count + timeline.overflow_count
    if total > _MAX_ROWS:
        table.add_row("", f"{total - _MAX_ROWS:,} more in --json")
    if not total:
        table.add_row("", "no rung was reached")
    return table


def _cells(
    event: Crossing | Compaction | Overflow, *, rounds: bool
) -> tuple[str, str, int | None, str, str]:
    """Return what happened, its style, the tokens, the usage, and the source."""
    if isinstance(event, Overflow):
        how = "the last reading; the next request was refused as too large"
        return "overflow", "bold red", event.tokens, "", how
    if isinstance(event, Crossing):
        how = event.tokens_source
        if event.turns_left is not None and event.turns_low is not None:
            runway = Runway(event.turns_left, event.turns_low, event.turns_high)
            left = f"{runway} left before {event.next_rung}"
            how += f", {f'the next turn may reach {event.next_rung}' if runway.is_next else left}"
        elif event.next_rung is not None:
            how += f", pace towards {event.next_rung} not known yet"
        ratio = exact_ratio(event.usage_ratio, event.tokens, event.context_limit)
        share = f"{whole_percent(ratio, rounds=rounds)} %"
        return event.level, action_style(event.action), event.tokens, share, how
    is_stated = event.reason == "boundary"
    how = f"{field(event.trigger)} boundary".lstrip() if is_stated else "fall of the reports"
    how += f", from {tokens(event.tokens_before)}"
    return "compaction", "cyan", event.tokens_after, "", how


def _sources_table(timeline: Timeline, *, ascii_only: bool) -> Table:
    """List what filled the window, the largest source first."""
    table = make_table()
    table.add_column("what filled the window", overflow="fold" if ascii_only else "ellipsis")
    table.add_column("", no_wrap=True, min_width=_BAR_WIDTH)
    for name in ("tokens", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    total = sum(timeline.by_source.values())
    sources = [(name, round(count)) for name, count in tokens_by_words(timeline.by_source).items()]
    rows, more = sources[:_MAX_SOURCES], sources[_MAX_SOURCES:]
    if more:
        rows.append((f"{len(more)} more", sum(count for _, count in more)))
    for name, count in rows:
        bar = usage_bar(count / total, _BAR_WIDTH, ascii_only=ascii_only)
        table.add_row(Text(field(name)), Text(bar, "cyan"), tokens(count), percent(count / total))
    return table
