"""What the agents of a team used, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.cli.output import (
    field,
    make_console,
    make_table,
    plural,
    print_line,
    say,
    short_tokens,
)
from ultramon.prices.cost import cost_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.postgres.store.reading_sums import Figures

_COLUMNS = (
    "sessions", "subagents", "cost", "input", "cached", "output", "peak", "crossings", "compacted",
)  # fmt: skip
_MOST_ROWS = 31
"""Of a group; a month of days is shown whole."""
_NAME_CELLS = 28


def print_team(
    total: Figures, parts: Mapping[str, Mapping[str, Figures]], *, days: int, machines: int
) -> None:
    """Print the sums of some days.

    Args:
        total: Of all.
        parts: By the name of a group, the rows of its table; one without rows is left out.
        days: How many days they are of.
        machines: How many machines had readings.
    """
    console = make_console()
    facts = [plural(days, "day"), plural(total.sessions, "session")]
    if total.subagents:
        facts.append(plural(total.subagents, "subagent"))
    facts.append(plural(machines, "machine"))
    print_line(" · ".join(facts))
    for name, rows in parts.items():
        if not rows:
            continue
        table = make_table()
        table.add_column(name, width=_NAME_CELLS, no_wrap=True)
        for column in _COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for value, figures in list(rows.items())[:_MOST_ROWS]:
            table.add_row(field(value) or "unknown", *_cells(figures))
        if len(rows) > 1:
            table.add_row("all", *_cells(total))
        console.print(table)
        if (left := len(rows) - _MOST_ROWS) > 0:
            say(f"{left:,} more of {name}, shown with --json")


def _cells(one: Figures) -> list[str]:
    written = (one.input_tokens or 0) + (one.cache_write_tokens or 0)
    is_known = one.input_tokens is not None
    return [
        f"{one.sessions:,}",
        f"{one.subagents:,}" if one.subagents else "",
        cost_words(one.cost_usd, is_whole=not one.unpriced),
        short_tokens(written) if is_known else "",
        "" if one.cache_read_tokens is None else short_tokens(one.cache_read_tokens),
        "" if one.output_tokens is None else short_tokens(one.output_tokens),
        "" if one.peak_tokens is None else short_tokens(one.peak_tokens),
        f"{one.crossings:,}" if one.crossings else "",
        f"{one.compactions:,}x" if one.compactions else "",
    ]
