"""Agents as their transcripts show them, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.cli.output import age, field, make_console, make_table, short_tokens
from ultramon.recordings.short_names import short_names
from ultramon.state.usage_percent import whole_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.recordings.transcript_agents import TranscriptAgent

_COLUMNS = ("used", "of", "usage", "compacted", "last")
_UNKNOWN = "?"


def print_transcript_agents(agents: Sequence[TranscriptAgent], now: float) -> None:
    """Print at least one agent; what its transcript does not say is ``?``."""
    console = make_console()
    table = make_table()
    for name in ("project", "host", "model"):
        table.add_column(name, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True)
    names = short_names({one.project for one in agents if one.project is not None})
    for one in agents:
        ratio = one.usage_ratio
        table.add_row(
            field(_UNKNOWN if one.project is None else names[one.project]),
            field(one.host),
            field(one.model or _UNKNOWN),
            _UNKNOWN if one.current_tokens is None else short_tokens(one.current_tokens),
            _UNKNOWN if one.context_limit is None else short_tokens(one.context_limit),
            _UNKNOWN if ratio is None else f"{whole_percent(ratio, rounds=True)} %",
            f"{one.compactions:,}x" if one.compactions else "",
            "" if one.last_record_at is None else age(now - one.last_record_at.timestamp()),
            field(one.agent_id),
        )
    console.print(table)
