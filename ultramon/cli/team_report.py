"""`ultramon report` over a database: what the agents of all machines used."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from ultramon.backends.machines import find_machine, machine_names
from ultramon.backends.postgres.store.reading_sums import GROUPS
from ultramon.cli.output import print_json, sanitize_values, say
from ultramon.cli.views.team_table import print_team

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.postgres.backend import PostgresBackend
    from ultramon.backends.postgres.store.reading_sums import Figures

DIRECT = "direct"
"""Names what agents store in the database themselves, without a machine that mirrors them."""


def report_team(
    store: PostgresBackend,
    *,
    now: float,
    days: int,
    by: str | None,
    machine: str | None,
    as_json: bool,
) -> None:
    """Print what the last days used.

    Args:
        store: The database.
        now: Epoch seconds.
        days: How many days, today among them, in UTC.
        by: One of `GROUPS` alone; None = all of them.
        machine: The name or id of one machine; None = all.
        as_json: Print JSON.

    Raises:
        ConfigurationError: No machine, or several, are meant.
        StateError: The database does not answer.
    """
    names = machine_names(store.machines())
    machine_id = None
    if machine is not None:
        machine_id = "" if machine == DIRECT else find_machine(names, machine)
    end = datetime.datetime.fromtimestamp(now, datetime.UTC).date() + datetime.timedelta(days=1)
    first = end - datetime.timedelta(days=days)
    found = store.reading_sums.read(first, end, machine_id)
    parts = {name: _sorted(found.groups[name], name) for name in GROUPS if by in (None, name)}
    if as_json:
        facts: dict[str, Any] = {
            "url": store.url,
            "since": f"{first}",
            "days": days,
            "total": _json(found.total),
        }
        for name, rows in parts.items():
            facts[f"by{name.capitalize()}"] = [
                {name: value or None, **_named(name, value, names), **_json(figures)}
                for value, figures in rows.items()
            ]
        print_json(sanitize_values(facts))
    elif found.total.readings:
        parts["machine"] = {
            names.get(value, value) or DIRECT: figures
            for value, figures in parts.get("machine", {}).items()
        }
        print_team(found.total, parts, days=days, machines=len(found.groups["machine"]))
    if not found.total.readings:
        say(f"no reading in the last {days} days in {store.url}; `ultramon share` sends them")


def _sorted(rows: Mapping[str, Figures], name: str) -> dict[str, Figures]:
    """Return days in their order, others with the dearest first, then those with most tokens."""
    if name == "day":
        return dict(sorted(rows.items()))

    def weight(item: tuple[str, Figures]) -> tuple[float, int, str]:
        value, one = item
        return -(one.cost_usd or 0.0), -(one.output_tokens or 0), value

    return dict(sorted(rows.items(), key=weight))


def _named(group: str, value: str, names: Mapping[str, str]) -> dict[str, str | None]:
    return {"name": names.get(value)} if group == "machine" else {}


def _json(one: Figures) -> dict[str, Any]:
    return {
        "sessions": one.sessions,
        "subagents": one.subagents,
        "readings": one.readings,
        "peakTokens": one.peak_tokens,
        "inputTokens": one.input_tokens,
        "cacheReadTokens": one.cache_read_tokens,
        "cacheWriteTokens": one.cache_write_tokens,
        "outputTokens": one.output_tokens,
        "costUsd": one.cost_usd,
        "unpricedAgents": one.unpriced,
        "crossings": one.crossings,
        "compactions": one.compactions,
    }
