"""What a notice says: fixed sentences around typed facts. It gives no orders.

Facts may come from any program, and a notice ends up in an agent's context. So a text is made of
the words below, numbers, times and checked names only. Standard library only: hooks render notices.
"""

from __future__ import annotations

from ultramon.context.gauge import is_lower_bound
from ultramon.context.ladder import CRITICAL, FORCE_RETURN, WARNING
from ultramon.state.level_share import share_facts, share_in, words_of
from ultramon.state.liveness import ENDED, LOST, OUTCOMES
from ultramon.state.usage_percent import exact_ratio, whole_percent
from ultramon.system.ids import is_agent_id
from ultramon.system.timestamps import clock_time, format_time, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any

    from ultramon.notices.levels import Decision
    from ultramon.state.record import StateRecord

CONTEXT = "context_monitor"
"""Category of what is stale after a compaction or a clear."""
HANDOFF = "handoff"
LIFECYCLE = "lifecycle"
"""Category of ends: no compaction and no clear makes them untrue."""

CATEGORIES = (CONTEXT, HANDOFF, LIFECYCLE)
"""The categories of notices; messages of other senders have none of these."""

EXPIRED = "expired"
RECOVERED = "recovered"
CLEAR = "clear"
"""Reason of an exit that is none: the agent's window was cleared."""
LIFE = {
    "agent_stopped": ENDED,
    "agent_expired": EXPIRED,
    "agent_lost": LOST,
    "agent_recovered": RECOVERED,
}
"""The ``kind`` of a notice by the event of an agent's life that it is about."""
ENDS = ("agent_stopped", "agent_lost")
"""Events after which no notice about the agent's context window holds."""
_PLANNED = ("completed", "returned", "cancelled")
_SOURCES = ("reported", "anchored", "estimated")
_MOST = 10**12
_EPOCH_ENDS = {
    "compaction": "was compacted",
    "clear": "was cleared",
    "fall": "was emptied, as its readings show",
    "handoff": "begins anew after a handoff",
}
_COUNTED = ("completed", "interrupted", "remaining")


def describe(record: StateRecord) -> str:
    """Return an agent's name for others: its id, and its label where that is one word."""
    # A label of several words may be a person's prompt, which no other agent is to read.
    own = record.agent_id
    return f"{record.label} ({own})" if is_agent_id(record.label) else own


def render(
    facts: dict[str, Any],
    recipient: str,
    *,
    name: str,
    now: float,
    levels: Container[object] = (WARNING, CRITICAL),
    is_running: bool = False,
) -> str | None:
    """Return the text of a notice.

    Args:
        facts: Of a notice, or anything else; what is not a number, a time or a known word is left
            out.
        recipient: The agent that reads it.
        name: What the recipient calls the agent that the notice is about.
        now: Epoch seconds; an older reading shows its date.
        levels: The names of levels that may be shown. Users choose those of their own ladders.
        is_running: Whether to say that the agent is still running after its window ended.

    Returns:
        One line of at most 400 characters for names of 128; None for facts of no notice.
    """
    kind = facts.get("kind")
    if kind == HANDOFF:
        return f"[ultramon] {name} {_handoff_words(facts)}."
    if kind in LIFE.values():
        return f"[ultramon] {name} {_life_words(facts)}."
    if kind == "epoch":
        words: str | None = _epoch_words(facts)
    else:
        words = _level_words(facts, now, levels) if kind == "level" else None
    if words is None:
        return None
    if facts.get("agentId") == recipient:
        return f"[ultramon] Your context window {words}."
    tail = " The agent is still running." if kind == "epoch" and is_running else ""
    successor_id = facts.get("successorId")
    if kind == "epoch" and is_agent_id(successor_id):
        tail = f" It continues as {successor_id}."
    return f"[ultramon] Context window of {name} {words}.{tail}"


def level_facts(
    record: StateRecord, decision: Decision, ratio: float, *, rounds: bool = False
) -> dict[str, Any]:
    """Return the facts of a level that was reached.

    Args:
        record: Of the agent.
        decision: The level.
        ratio: The usage ratio that was judged.
        rounds: Whether the ladder that judged rounds to whole percents.
    """
    return {
        **_whose(record),
        "kind": "level",
        "level": decision.level,
        "previousLevel": decision.previous,
        "action": decision.action,
        "usageRatio": round(ratio, 6),
        "tokens": record.estimated_tokens if record.context_limit else None,
        "contextLimit": record.context_limit,
        "tokensSource": record.tokens_source,
        "measuredAt": format_time(record.measured_at or 0.0),
        **share_facts(decision.share),
        **({"isLowerBound": True} if is_lower_bound(record) else {}),
        **({"roundPercent": True} if rounds else {}),
    }


def _level_words(facts: dict[str, Any], now: float, levels: Container[object]) -> str | None:
    ratio: Any = facts.get("usageRatio")
    if type(ratio) not in (int, float) or not ratio >= 0:
        return None
    tokens, limit = _count(facts, "tokens"), _count(facts, "contextLimit")
    shown = "more than 99,999%"
    if ratio < 1000:
        exact, rounds = exact_ratio(ratio, tokens, limit), facts.get("roundPercent") is True
        shown = f"{whole_percent(exact, rounds=rounds)}%"
    if facts.get("isLowerBound") is True:
        shown += " or more"
    level = facts.get("level")
    is_shown = isinstance(level, str) and level in levels
    named = f" ({words_of(level, share_in(facts), limit)})" if is_shown else ""
    parts = [f"is at {shown}{named}"]
    if tokens is not None and limit:
        parts.append(f"{tokens:,} of {limit:,} tokens")
    source, at = facts.get("tokensSource"), parse_time(facts.get("measuredAt"))
    if source in _SOURCES and at is not None:
        parts.append(f"{source} {clock_time(at, now)}")
    return ", ".join(parts)


def epoch_facts(record: StateRecord, event: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a window that ended."""
    return {
        **_whose(record),
        "kind": "epoch",
        "reason": event["reason"],
        "epoch": event["epoch"],
        "tokensBefore": event.get("tokensBefore"),
        "tokensAfter": event.get("tokensAfter"),
        **({"successorId": event["successorId"]} if event.get("successorId") else {}),
    }


def is_clear(record: StateRecord) -> bool:
    """Return whether an agent ended because it was cleared, and continues under another id."""
    return (record.exit or {}).get("reason") == CLEAR


def _epoch_words(facts: dict[str, Any]) -> str:
    reason = facts.get("reason")
    words = _EPOCH_ENDS.get(reason, "begins anew") if isinstance(reason, str) else "begins anew"
    times = (("tokensBefore", "before"), ("tokensAfter", "after"))
    counts = [f"{count:,} tokens {when}" for name, when in times if (count := _count(facts, name))]
    return words + (f": {', '.join(counts)}" if counts else "")


def handoff_facts(event: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a handoff that is stored."""
    handoff = event["handoff"]
    counts = {name: len(handoff.get(name) or ()) for name in _COUNTED}
    return {**_who(event), "kind": HANDOFF, "reason": handoff.get("reason"), **counts}


def _handoff_words(facts: dict[str, Any]) -> str:
    counts = [f"{count:,} {name}" for name in _COUNTED if (count := _count(facts, name))]
    words = "left a handoff"
    if facts.get("reason") == "lost":  # the one of a vanished agent is not its own work
        words = "has a handoff made of its last saved plan"
    return words + (f": {', '.join(counts)}" if counts else "")


def life_facts(record: StateRecord | None, event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the facts of an end, a loss or a recovery.

    Args:
        record: The agent's state, where that is known.
        event: One of the types in `LIFE`.

    Returns:
        None for a recovery from silence that did not yet count as a loss: no recipient was
        notified of that.
    """
    kind = LIFE[event["type"]]
    if kind == RECOVERED and event.get("previous") != LOST:
        return None
    facts = {**_who(event), "kind": kind}
    if kind != RECOVERED:
        facts["outcome"] = event.get("outcome")
        exited = event.get("exit") or (None if record is None else record.exit)
        # The text of an exception is free text, and stays with the agent's state.
        facts["exit"] = exited and {n: v for n, v in exited.items() if n != "message"}
    if kind == LOST and str(event.get("reason")).startswith("no heartbeat"):
        facts["lastHeartbeat"] = format_time(event["n"] / 1000)
    if record is not None and (record.tasks_completed or record.tasks_total):
        facts["tasksCompleted"], facts["tasksTotal"] = record.tasks_completed, record.tasks_total
    return facts


def _life_words(facts: dict[str, Any]) -> str:
    kind = facts["kind"]
    if kind == RECOVERED:
        return "counted as lost and is alive"
    words = "has not returned in time"
    if kind == LOST:
        words = f"was lost: {_why_lost(facts)}"
    elif kind == ENDED:
        outcome = facts.get("outcome")
        words = "has ended" + (f": {outcome}" if outcome in OUTCOMES else "")
    done, total = _count(facts, "tasksCompleted"), _count(facts, "tasksTotal")
    if done is None:
        return words
    return f"{words}, {done:,}{'' if total is None else f' of {total:,}'} tasks completed"


def _why_lost(facts: dict[str, Any]) -> str:
    exited = facts.get("exit")
    if isinstance(exited, dict):
        signal, code = exited.get("signal"), exited.get("returncode")
        if exited.get("outOfMemory") is True:
            return "its process was killed, out of memory"
        # Facts may come from any program: only what looks like a name of a signal is shown.
        if isinstance(signal, str) and signal.isascii() and signal.isalnum() and len(signal) < 16:
            return f"its process was ended by {signal}"
        if type(code) is int:
            return f"its process ended with code {code}"
    beat_at = parse_time(facts.get("lastHeartbeat"))
    if beat_at is not None:
        return f"no heartbeat since {format_time(beat_at)[11:16]}Z"
    return "its process is gone"


def _count(facts: dict[str, Any], name: str) -> int | None:
    value = facts.get(name)
    # By `type`, as a bool is an int too.
    return value if type(value) is int and 0 <= value <= _MOST else None


def delivery_of(facts: dict[str, Any]) -> str:
    """Return the mode in which a notice is delivered.

    `urgent` only for what an agent has to act on while it is working. An unplanned end waits for
    the present reply: it cannot become worse meanwhile, and an orchestrator that is idle waits for
    it.
    """
    if facts.get("action") == FORCE_RETURN:
        return "urgent"
    kind = facts["kind"]
    is_unplanned = kind in (LOST, EXPIRED, RECOVERED) or (
        kind == ENDED and facts["outcome"] not in _PLANNED
    )
    return "important" if is_unplanned else "sequential"


def category_of(facts: dict[str, Any]) -> str:
    """Return the category of a notice."""
    kind = facts["kind"]
    if kind in ("level", "epoch"):
        return CONTEXT
    return HANDOFF if kind == HANDOFF else LIFECYCLE


def _who(about: dict[str, Any]) -> dict[str, Any]:
    return {name: about[name] for name in ("agentId", "run", "generation", "epoch")}


def _whose(record: StateRecord) -> dict[str, Any]:
    return {
        "agentId": record.agent_id,
        "run": record.run,
        "generation": record.generation,
        "epoch": record.epoch,
    }
