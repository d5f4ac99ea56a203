"""What a notice says: fixed sentences around typed fields, facts only.

Text that other agents or people wrote never gets in: a notice ends up in an agent's context.
"""

from __future__ import annotations

from ultramon.context.ladder import FORCE_RETURN
from ultramon.errors import InvalidAgentIdError
from ultramon.system.ids import check_agent_id
from ultramon.system.timestamps import clock_time, format_time, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.notices.rules import Decision
    from ultramon.state.record import StateRecord

CONTEXT = "context_monitor"
"""Category of what is stale after a compaction or a clear."""
HANDOFF = "handoff"
LIFECYCLE = "lifecycle"
"""Category of ends: no compaction and no clear makes them untrue."""

CATEGORIES = (CONTEXT, HANDOFF, LIFECYCLE)
"""Of notices; messages of others have none of these."""

ENDED = "ended"
EXPIRED = "expired"
LOST = "lost"
RECOVERED = "recovered"
LIFE = {
    "agent_stopped": ENDED,
    "agent_expired": EXPIRED,
    "agent_lost": LOST,
    "agent_recovered": RECOVERED,
}
"""What the events of an agent's life are called as ``kind`` of a notice."""
ENDS = ("agent_stopped", "agent_lost")
"""Events after which nothing that was said of an agent's context window holds."""
_PLANNED = ("completed", "returned", "cancelled")
_OUTCOMES = (*_PLANNED, "failed", "expired", "lost")
_LEFT = "left a handoff"
_MOST = 10**12
_ENDINGS = {
    "compaction": "was compacted",
    "clear": "was cleared",
    "fall": "was emptied, as its readings show",
    "handoff": "begins anew after a handoff",
}
_COUNTED = ("completed", "interrupted", "remaining")


def describe(record: StateRecord) -> str:
    """Return an agent's name for others: its id, and its label where that is one word."""
    try:
        return f"{check_agent_id(record.label)} ({record.agent_id})"
    except InvalidAgentIdError:
        return record.agent_id


def whose_window(record: StateRecord, recipient: str) -> str:
    """Return the subject of a notice about an agent's context window."""
    if recipient == record.agent_id:
        return "Your context window"
    return f"Context window of {describe(record)}"


def percent(ratio: float) -> str:
    """Write a ratio as a percentage: whole, else with one decimal."""
    return f"{round(ratio * 100, 1):g}%"


def level_notice(
    record: StateRecord, decision: Decision, ratio: float, recipient: str, now: float
) -> tuple[str, dict[str, Any]]:
    """Return text and facts of a level that was reached."""
    measured_at = record.measured_at or 0.0
    parts = [f"{whose_window(record, recipient)} is at {percent(ratio)} ({decision.level})"]
    if record.context_limit:
        parts.append(f"{record.estimated_tokens:,} of {record.context_limit:,} tokens")
    parts.append(f"{record.tokens_source} {clock_time(measured_at, now)}")
    facts = {
        **_whose(record),
        "kind": "level",
        "level": decision.level,
        "previousLevel": decision.previous,
        "action": decision.action,
        "usageRatio": round(ratio, 6),
        "tokens": record.estimated_tokens,
        "contextLimit": record.context_limit,
        "tokensSource": record.tokens_source,
        "measuredAt": format_time(measured_at),
    }
    return f"[ultramon] {', '.join(parts)}.", facts


def epoch_notice(
    record: StateRecord, event: dict[str, Any], recipient: str
) -> tuple[str, dict[str, Any]]:
    """Return text and facts of a window that ended."""
    reason = event["reason"]
    what = _ENDINGS.get(reason, "begins anew")
    before, after = event.get("tokensBefore"), event.get("tokensAfter")
    counts = [
        f"{count:,} tokens {when}"
        for count, when in ((before, "before"), (after, "after"))
        if count
    ]
    tail = f": {', '.join(counts)}" if counts else ""
    text = f"[ultramon] {whose_window(record, recipient)} {what}{tail}."
    if recipient != record.agent_id and record.active:
        text += " The agent is still running."
    facts = {
        **_whose(record),
        "kind": "epoch",
        "reason": reason,
        "epoch": event["epoch"],
        "tokensBefore": before,
        "tokensAfter": after,
    }
    return text, facts


def handoff_notice(record: StateRecord | None, event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return text and facts of a handoff that is stored, whoever wrote it."""
    handoff = event["handoff"]
    counts = {name: len(handoff.get(name) or ()) for name in _COUNTED}
    facts = {**_who(event), "kind": "handoff", "reason": handoff.get("reason"), **counts}
    return f"[ultramon] {_name(record, event)} {handoff_words(facts)}.", facts


def handoff_words(facts: dict[str, Any]) -> str:
    """Return what the facts of a handoff say, to be put behind the name of its agent."""
    counts = [f"{count:,} {name}" for name in _COUNTED if (count := _count(facts, name))]
    # The one of a vanished agent is not its own work.
    said = "has a handoff made of its last saved plan" if facts["reason"] == "lost" else _LEFT
    return said + (f": {', '.join(counts)}" if counts else "")


def life_notice(
    record: StateRecord | None, event: dict[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Return text and facts of what became of an agent.

    Args:
        record: Its state, where that is known.
        event: One of the types in `LIFE`.

    Returns:
        None where nobody was told the contrary: silence that came to an end before the agent
        counted as lost.
    """
    kind = LIFE[event["type"]]
    if kind == RECOVERED and event.get("previous") != LOST:
        return None
    facts = {**_who(event), "kind": kind}
    if kind != RECOVERED:
        facts["outcome"] = event.get("outcome")
        facts["exit"] = event.get("exit") or (None if record is None else record.exit)
    if kind == LOST and str(event.get("reason")).startswith("no heartbeat"):
        facts["lastHeartbeat"] = format_time(event["n"] / 1000)
    if record is not None and (record.tasks_completed or record.tasks_total):
        facts["tasksCompleted"], facts["tasksTotal"] = record.tasks_completed, record.tasks_total
    return f"[ultramon] {_name(record, event)} {life_words(facts)}.", facts


def life_words(facts: dict[str, Any]) -> str:
    """Return what the facts of an end say, to be put behind the name of its agent."""
    kind = facts["kind"]
    if kind == RECOVERED:
        return "counted as lost and is alive"
    words = "has not returned in time"
    if kind == LOST:
        words = f"was lost: {_why_lost(facts)}"
    elif kind == ENDED:
        outcome = facts.get("outcome")
        words = "has ended" + (f": {outcome}" if outcome in _OUTCOMES else "")
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
    return value if type(value) is int and 0 <= value < _MOST else None


def delivery_of(facts: dict[str, Any]) -> str:
    """Return the mode in which a notice is delivered.

    `urgent` only for what an agent has to act on while it goes on working. An end that nobody
    planned waits for the present reply: it cannot become worse meanwhile, and an orchestrator that
    is idle waits for it.
    """
    if facts.get("action") == FORCE_RETURN:
        return "urgent"
    kind = facts["kind"]
    is_unplanned = kind in (LOST, EXPIRED, RECOVERED) or (
        kind == ENDED and facts["outcome"] not in _PLANNED
    )
    return "important" if is_unplanned else "sequential"


def _name(record: StateRecord | None, event: dict[str, Any]) -> str:
    return str(event["agentId"]) if record is None else describe(record)


def _who(about: dict[str, Any]) -> dict[str, Any]:
    return {name: about[name] for name in ("agentId", "run", "generation", "epoch")}


def _whose(record: StateRecord) -> dict[str, Any]:
    return {
        "agentId": record.agent_id,
        "run": record.run,
        "generation": record.generation,
        "epoch": record.epoch,
    }
