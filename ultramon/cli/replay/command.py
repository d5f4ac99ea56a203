"""`ultramon replay`: what a monitor would have reported over a recording."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import (
    CommandFailed,
    SeveralFound,
    action_style,
    field,
    make_console,
    make_table,
    percent,
    plural,
    print_json,
    say,
    tokens,
    turns,
    usage_bar,
)
from ultramon.cli.selection import json_option
from ultramon.system.terminal_text import first_of, sanitize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ultramon.cli.replay.timeline import Compaction, Crossing, Overflow, Timeline
    from ultramon.transcripts.recordings import Skipped

_MAX_ROWS = 24
_MAX_SOURCES = 12
_BAR_WIDTH = 10
_MOMENT = "%Y-%m-%d %H:%M:%S"
_TOKENS = click.IntRange(min=1, max=1_000_000_000)


@click.command("replay")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--limit", "context_limit_tokens", type=_TOKENS, help="Cap on the context limit, in tokens."
)
@click.option(
    "--window",
    "context_window_tokens",
    type=_TOKENS,
    help="Context window of the model, in tokens.  [default: as recorded, else by model]",
)
@click.option("--model", help="Model to assume.  [default: as recorded]")
@click.option(
    "--warning",
    "warning_threshold",
    type=float,
    metavar="RATIO",
    help="Usage ratio of the warning rung.  [default: Claude Code 0.65, others 0.70]",
)
@click.option(
    "--critical",
    "critical_threshold",
    type=float,
    metavar="RATIO",
    help="Usage ratio of the critical rung.  [default: Claude Code 0.75, others 0.85]",
)
@click.option("--no-plot", is_flag=True, help="Leave the chart out.")
@json_option
def command(*, paths: tuple[str, ...], no_plot: bool, json: bool, **settings: Any) -> None:
    """Show what a monitor would have reported over a recording.

    PATH is a transcript of Claude Code, Gemini CLI or Qwen Code (with its subagents), a rollout of
    Codex, JSON lines of {"text": ...} and {"usage": {...}}, a text, or a directory: all recordings
    in it or, without any, its text files as one agent would read them. The beginning of a session's
    id, as `ultramon report` shows it, finds the transcript where its client keeps it.

    Files of any size are streamed. Files that are no recordings are named on stderr.
    """
    from ultramon.cli.replay.player import replay
    from ultramon.context.config import ContextConfig
    from ultramon.transcripts.recordings import find_recordings

    found = find_recordings([path if os.path.exists(path) else _find(path) for path in paths])
    if not found.recordings:
        _say_skipped(found.skipped)
        raise CommandFailed("nothing to replay: no recording, no text")
    given = {name: value for name, value in settings.items() if value is not None}
    config = ContextConfig(**given)
    timelines = (replay(recording, config) for recording in found.recordings)
    if json:
        agents = [one.model_dump(mode="json", by_alias=True) for one in timelines]
        skipped = [{"path": one.path, "reason": one.reason} for one in found.skipped]
        print_json({"agents": agents, "skipped": skipped})
        return
    console = make_console()
    for number, timeline in enumerate(timelines):
        if number:
            console.print()
        _print_timeline(console, timeline, with_plot=not no_plot)
    _say_skipped(found.skipped)


def _find(name: str) -> str:
    """Return the one transcript whose id begins like this."""
    from ultramon.transcripts.clients import find_by_id

    found = find_by_id(name, os.environ)
    if not found:
        reason = f"{name!r} is no path, and no transcript on this machine has an id like it."
        raise click.BadParameter(reason, param_hint="'PATH...'")
    if len(found) > 1:
        names = first_of([os.path.basename(path) for path in found])
        raise SeveralFound(f"id {name} fits {len(found)} transcripts: {names}")
    return found[0]


def _say_skipped(skipped: list[Skipped]) -> None:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for one in skipped:
        by_reason[one.reason].append(one.path)
    for reason, paths in by_reason.items():
        say(f"skipped {first_of(paths)}: {reason}")


def _print_timeline(console: Console, timeline: Timeline, *, with_plot: bool) -> None:
    from rich.text import Text

    from ultramon.cli.replay.plot import plot

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
        limited = f"limit {tokens(limit)} tokens ({timeline.limit_source})"
        of_limit = f", {percent(peak / limit)} of the limit"
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
        f"{timeline.kind}, {sanitize(timeline.path)}",
        read,
        f"model {field(timeline.model) or 'not named'}, {limited}",
        f"peak {tokens(peak)} tokens {timeline.peak_source}{of_limit}; "
        f"{plural(timeline.epochs, 'epoch')}, {happened}",
    ]


def _events_table(timeline: Timeline) -> Table:
    """List rungs reached and compactions in the order they happened."""
    from rich.text import Text

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
        what, style, count, share, how = _cells(event)
        table.add_row(when, Text(what, style), tokens(count), Text(share, style), Text(how))
    total = timeline.crossing_count + timeline.compaction_count + timeline.overflow_count
    if total > _MAX_ROWS:
        table.add_row("", f"{total - _MAX_ROWS:,} more in --json")
    if not total:
        table.add_row("", "no rung was reached")
    return table


def _cells(event: Crossing | Compaction | Overflow) -> tuple[str, str, int | None, str, str]:
    """Return what happened, its style, the tokens, the usage, and the source."""
    from ultramon.cli.replay.timeline import Crossing, Overflow

    if isinstance(event, Overflow):
        how = "the last reading; the next request was refused as too large"
        return "overflow", "bold red", event.tokens, "", how
    if isinstance(event, Crossing):
        how = event.tokens_source
        if event.turns_left is not None:
            left = f"{turns(event.turns_left)} left before {event.next_rung}"
            how += f", {left if event.turns_left else f'the next turn reaches {event.next_rung}'}"
        elif event.next_rung is not None:
            how += f", pace towards {event.next_rung} not known yet"
        share = percent(event.usage_ratio)
        return event.level, action_style(event.action), event.tokens, share, how
    is_stated = event.reason == "boundary"
    how = f"{field(event.trigger)} boundary".lstrip() if is_stated else "fall of the reports"
    how += f", from {tokens(event.tokens_before)}"
    return "compaction", "cyan", event.tokens_after, "", how


def _sources_table(timeline: Timeline, *, ascii_only: bool) -> Table:
    """List what filled the window, the largest source first."""
    from rich.text import Text

    from ultramon.transcripts.summary import UNRECORDED

    table = make_table()
    table.add_column("what filled the window", overflow="fold" if ascii_only else "ellipsis")
    table.add_column("", no_wrap=True, min_width=_BAR_WIDTH)
    for name in ("tokens", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    total = sum(timeline.by_source.values())
    sources = list(timeline.by_source.items())
    rows, more = sources[:_MAX_SOURCES], sources[_MAX_SOURCES:]
    if more:
        rows.append((f"{len(more)} more", sum(count for _, count in more)))
    for name, count in rows:
        shown = "not in the recording (system prompt, tools)" if name == UNRECORDED else field(name)
        bar = usage_bar(count / total, _BAR_WIDTH, ascii_only=ascii_only)
        table.add_row(Text(shown), Text(bar, "cyan"), tokens(count), percent(count / total))
    return table
