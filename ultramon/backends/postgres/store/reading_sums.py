"""What the agents of a team used: the sums of days, by machine, host, model and day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ultramon.backends.postgres.connection.database import LONG_SILENCE_SECONDS
from ultramon.backends.postgres.schema.text_columns import from_column

if TYPE_CHECKING:
    import datetime

    from ultramon.backends.postgres.connection.database import Database

_DELETED_AT_ONCE = 500_000
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
    """Reads sums of days, and deletes old ones.

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

    def prune(self, readings_before: float, sums_before: float, *, dry_run: bool) -> dict[str, int]:
        """Delete old readings and old sums of days.

        Args:
            readings_before: Epoch seconds; readings since then stay.
            sums_before: Epoch seconds; the sums of its day and of later ones stay.
            dry_run: Delete nothing.

        Returns:
            How many of each were, or would be, deleted, by table.

        Raises:
            StateError: The database does not answer, or this user may not delete them.
        """
        deleted = {}
        for table, is_old, before in (
            ("readings", "at < %s", readings_before),
            ("reading_days", "day < (to_timestamp(%s) AT TIME ZONE 'UTC')::date", sums_before),
        ):
            limit = self.database.to_server(before)
            if dry_run:
                [(deleted[table],)] = self._change(
                    f"SELECT count(*) FROM ultramon.{table} WHERE {is_old}", limit
                )
                continue
            deleted[table] = 0
            # Some at a time: a statement that runs for minutes would be ended.
            while rows := self._change(
                f"WITH gone AS (DELETE FROM ultramon.{table} WHERE ctid = ANY (ARRAY("
                f" SELECT ctid FROM ultramon.{table} WHERE {is_old} LIMIT {_DELETED_AT_ONCE}))"
                " RETURNING 1) SELECT count(*) FROM gone HAVING count(*) > 0",
                limit,
            ):
                deleted[table] += rows[0][0]
        return deleted

    def _change(self, statement: str, before: float) -> list[tuple[int]]:
        with self.database.transaction(silence_seconds=LONG_SILENCE_SECONDS) as connection:
            return connection.execute(statement, (before,)).fetchall()
