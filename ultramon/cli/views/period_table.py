"""What each day, week or month cost, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.cli.output import field, make_console, make_table, plural, short_tokens
from ultramon.cli.views.report_screen import price_words
from ultramon.prices.cost import cost_words, range_words
from ultramon.recordings.short_names import short_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.recordings.bills import CostFacts
    from ultramon.recordings.daily_sums import Period, PeriodReport

_COLUMNS = ("sessions", "cost", "read again", "compacted", "input", "cached", "output")
_PROJECT_CELLS = 24


def print_periods(found: PeriodReport) -> None:
    """Print a report with at least one period."""
    from rich.text import Text

    console = make_console()
    title = f"{plural(len(found.periods), found.by)} · {plural(found.sessions, 'session')}"
    if words := price_words(found.price_data):
        title += f" · {words}"
    console.print(Text(title, "bold"), no_wrap=True, overflow="crop")
    table = make_table()
    table.add_column(found.by, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    has_room = console.width > _WIDTH_WITHOUT_PROJECT
    if has_room:
        table.add_column("most for", width=_PROJECT_CELLS, no_wrap=True)
    dearest = {part.name for one in found.periods for part in one.by_project[:1]}
    names = short_names({name for name in dearest if name is not None})
    for one in found.periods:
        most = [Text(_dearest(one, names))] if has_room else []
        table.add_row(_name(one, found.by), *_cells(one, one.sessions, one.compactions), *most)
    if len(found.periods) > 1:
        rest = [Text("")] if has_room else []
        table.add_row("all", *_cells(found, found.sessions, found.compactions), *rest)
    console.print(table)


_WIDTH_WITHOUT_PROJECT = 110


def _cells(one: CostFacts, sessions: int, compactions: int) -> list[str]:
    spent, most = one.spent, one.read_again_most_usd or 0.0
    written = spent.cache_write_tokens + spent.cache_write_1h_tokens
    return [
        f"{sessions:,}",
        cost_words(one.cost_usd, is_whole=not one.unpriced_sessions),
        range_words(one.read_again_usd or 0.0, most) if most else "",
        f"{compactions:,}x" if compactions else "",
        short_tokens(spent.input_tokens + written),
        short_tokens(spent.cache_read_tokens),
        short_tokens(spent.output_tokens),
    ]


def _name(one: Period, by: str) -> str:
    if by == "month":
        return f"{one.start:%Y-%m}"
    return f"{one.start}"


def _dearest(one: Period, names: Mapping[str, str]) -> str:
    first = next(iter(one.by_project), None)
    if first is None or first.name is None:
        return "unknown" if first else ""
    return field(names[first.name])
