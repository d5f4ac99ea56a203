"""What the agents of a team used: the sums of days, by machine, host, model and day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ultramon.backends.postgres.schema.text_columns import from_column

if TYPE_CHECKING:
    import datetime

    from ultramon.backends.postgres.connection.database import Database

GROUPS = ("machine", "host", "model", "day")
"""What sums are made by."""
_FIGURES = """
    count(DISTINCT agent_id) FILTER (WHERE has_parent IS NOT TRUE)::int,
    count(DISTINCT agent_id) FILTER (WHERE has_parent)::int, sum(readings)::bigint,
    max(peak_tokens), sum(input_tokens)::bigint, sum(cache_read_tokens)::bigint,
    sum(cache_write_tokens)::bigint, sum(output_tokens)::bigint, sum(cost_usd),
    count(DISTINCT agent_id) FILTER (WHERE cost_usd IS NULL AND readings > 0)::int,
    sum(crossings)::bigint, sum(compactions)::bigint
"""
# Bits of GROUPING, the last column's first, are 0 for what a row is grouped by.
_SUMS = f"""
    SELECT 15 - GROUPING(day, model, host, machine_id),
        coalesce(machine_id, host, model, day::text), {_FIGURES}
    FROM ultramon.reading_days
    WHERE day >= %s AND day < %s AND (%s::text IS NULL OR coalesce(machine_id, '') = %s)
    GROUP BY GROUPING SETS ((machine_id), (host), (model), (day), ())
"""


class Figures(NamedTuple):
    """What some agents used together."""

    sessions: int
    """Agents without a parent."""
    subagents: int
    """Agents with one."""
    readings: int
    peak_tokens: int | None
    """The most that one window held."""
    input_tokens: int | None
    """That were read from no cache; None = no machine has said, as for the next ones."""
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    unpriced: int
    """Agents with a day whose cost is not known."""
    crossings: int
    """How often an agent reached a rung."""
    compactions: int


class TeamSums(NamedTuple):
    """The sums of some days."""

    total: Figures
    groups: dict[str, dict[str, Figures]]
    """By one of `GROUPS`, then by its value; empty for what is not known, and for agents that no
    machine mirrors."""


@dataclass(frozen=True, slots=True)
class ReadingSums:
    """Reads sums of days.

    Attributes:
        database: Where they are.
    """

    database: Database

    def read(
        self, first: datetime.date, end: datetime.date, machine_id: str | None = None
    ) -> TeamSums:
        """Return the sums of days in UTC.

        Args:
            first: The first day.
            end: The day behind the last one.
            machine_id: Only of this machine; empty = of agents that no machine mirrors.

        Raises:
            StateError: The database does not answer, or this user may not read it.
        """
        groups: dict[str, dict[str, Figures]] = {name: {} for name in GROUPS}
        total = Figures(0, 0, 0, None, None, None, None, None, None, 0, 0, 0)
        for group, value, *figures in self.database.select(
            _SUMS, first, end, machine_id, machine_id
        ):
            if not group:
                total = Figures(*(figures if figures[2] is not None else total))
                continue
            name = GROUPS[group.bit_length() - 1]
            groups[name][from_column(value) or ""] = Figures(*figures)
        return TeamSums(total, groups)
