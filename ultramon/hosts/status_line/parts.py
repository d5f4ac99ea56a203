"""The parts of the status line behind the context. Standard library only."""

from __future__ import annotations

import os

from ultramon.context.ladder import FORCE_RETURN
from ultramon.errors import StateError
from ultramon.state.budget_readings import BudgetReadings, shown_of
from ultramon.state.plan_limits import finite_number
from ultramon.state.usage_percent import usage_percent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ultramon.hosts.calls.store import HookStore
    from ultramon.state.record import StateRecord

BETWEEN = " · "
_DAY_SECONDS = 86_400.0
_LEAST_USD = 0.005
_MAX_SUBAGENTS = 20
"""So many are read, those that changed last: ended ones stay stored for days."""
_MAX_NAME_CHARS = 24
_BRIEF_ID_CHARS = 8


def join_parts(
    parts: Mapping[str, Callable[[], Sequence[str]]],
    order: Sequence[str],
    environ: Mapping[str, str],
) -> str:
    """Return the line: the parts in their order, without the last ones where there is no room.

    Args:
        parts: What makes the texts of each part; an empty one says nothing.
        order: The names of the parts that are shown.
        environ: Of the host, with the width of its terminal.
    """
    made = [parts[name]() for name in order if name in parts]
    shown = [text for texts in made for text in texts if text]
    columns = environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() and len(columns) < 6 else 0
    while width and len(shown) > 1 and _width(BETWEEN.join(shown)) > width:
        shown.pop()
    return BETWEEN.join(shown)


def subagent_part(store: HookStore, session_id: str) -> str:
    """Return the running subagent nearest to its limit, how many run, and how many brought no text.

    Empty where none runs and each brought one.

    Args:
        store: Where the agents are.
        session_id: Whose subagents.
    """
    last = _last_subagents(store, session_id)
    running = [one for one in last if one.active]
    known = [one for one in running if one.usage_ratio is not None]
    words = []
    if known:
        fullest = max(known, key=lambda one: one.usage_ratio or 0.0)
        # A label begins with the project, which is the session's own.
        title = (fullest.label or "").rpartition(": ")[2].strip()
        name = title or fullest.agent_id.removeprefix(f"{session_id}.")
        words.append(f"{name[:_MAX_NAME_CHARS]} {usage_percent(fullest)}%")
    if len(running) > (1 if known else 0):
        words.append(f"{len(running)} running")
    empty = sum(store.hosted(one).memory.returned_no_text for one in last if not one.active)
    if empty:
        words.append(f"{empty} came back empty")
    return f"sub {BETWEEN.join(words)}" if words else ""


def _last_subagents(store: HookStore, session_id: str) -> list[StateRecord]:
    found = []
    try:
        names = store.children(session_id)
    except StateError:
        return []
    for agent_id in names:
        try:
            changed = os.lstat(os.path.join(store.directory.folder, f"{agent_id}.json"))
        except OSError:
            continue  # pruned meanwhile
        found.append((changed.st_mtime_ns, agent_id))
    found.sort(reverse=True)
    records = (store.find(agent_id) for _, agent_id in found[:_MAX_SUBAGENTS])
    return [one for one in records if one is not None]


def continue_part(record: StateRecord) -> str:
    """Return the command that continues a session in a fresh one, where it is to hand over."""
    if record.action != FORCE_RETURN:
        return ""
    return f"continue: ultramon continue {record.session_id[:_BRIEF_ID_CHARS]}"


def cost_part(fields: Mapping[str, Any]) -> str:
    """Return what the session has cost, as the host reckons it."""
    cost = fields.get("cost")
    usd = finite_number(cost.get("total_cost_usd")) if isinstance(cost, dict) else None
    return "" if usd is None or usd < _LEAST_USD else f"host ${usd:,.2f}"


def budget_part(store: HookStore, record: StateRecord) -> Sequence[str]:
    """Return what is spent of the budgets that count the session, as the last look stored it.

    Args:
        store: Where the agents are.
        record: The session.
    """
    readings = BudgetReadings(store.directory.path).read(store.now)
    names = [record.agent_id, record.label]
    return shown_of(readings, record.cwd, record.run, names) if readings else ()


def cache_part(fields: Mapping[str, Any], now: float) -> str:
    """Return how long the provider keeps the prompt's cache; empty where it is cold."""
    cache = fields.get("prompt_cache")
    if not isinstance(cache, dict) or cache.get("warm") is not True:
        return ""
    expires_at = finite_number(cache.get("expires_at"))
    if expires_at is None or not now < expires_at < now + _DAY_SECONDS:
        return ""
    minutes, seconds = divmod(int(expires_at - now), 60)
    return f"cache {minutes}:{seconds:02}"


def _width(text: str) -> int:
    """Return how many cells a text takes: colours take none."""
    return sum(len(part.partition("m")[2]) for part in ("m" + text).split("\x1b["))
