"""What a notice says: fixed sentences around typed fields, facts only.

Text that other agents or people wrote never gets in: a notice ends up in an agent's context.
"""

from __future__ import annotations

from ultramon.core.ids import check_agent_id
from ultramon.core.times import format_time
from ultramon.errors import InvalidAgentIdError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.core.record import StateRecord
    from ultramon.core.registration import Decision

CONTEXT = "context_monitor"
"""Category of what is stale after a compaction or a clear."""
HANDOFF = "handoff"

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


def percent(ratio: float) -> str:
    """Write a ratio as a percentage: whole, else with one decimal."""
    return f"{round(ratio * 100, 1):g}%"


def level_notice(
    record: StateRecord, decision: Decision, ratio: float, recipient: str
) -> tuple[str, dict[str, Any]]:
    """Return text and facts of a level that was reached."""
    whose = "Your context" if recipient == record.agent_id else f"Context of {describe(record)}"
    parts = [f"{whose} is at {percent(ratio)} ({decision.level})"]
    if record.context_limit:
        parts.append(f"{record.estimated_tokens:,} of {record.context_limit:,} tokens")
    at = format_time(record.measured_at or 0.0)
    parts.append(f"{record.tokens_source} {at[11:16]}Z")
    facts = {
        **_who(record),
        "kind": "level",
        "level": decision.level,
        "previousLevel": decision.previous,
        "action": decision.action,
        "usageRatio": round(ratio, 6),
        "tokens": record.estimated_tokens,
        "contextLimit": record.context_limit,
        "tokensSource": record.tokens_source,
        "measuredAt": at,
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
    if recipient == record.agent_id:
        text = f"[ultramon] Your context {what}{tail}."
    else:
        text = f"[ultramon] Context of {describe(record)} {what}{tail}."
        if record.active:
            text += " The agent is still running."
    facts = {
        **_who(record),
        "kind": "epoch",
        "reason": reason,
        "epoch": event["epoch"],
        "tokensBefore": before,
        "tokensAfter": after,
    }
    return text, facts


def handoff_notice(record: StateRecord, event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return text and facts of a handoff that is stored."""
    handoff = event["handoff"]
    counts = {name: len(handoff.get(name) or ()) for name in _COUNTED}
    said = [f"{count:,} {name}" for name, count in counts.items() if count]
    tail = f": {', '.join(said)}" if said else ""
    text = f"[ultramon] {describe(record)} left a handoff{tail}."
    return text, {**_who(record), "kind": "handoff", "reason": handoff.get("reason"), **counts}


def _who(record: StateRecord) -> dict[str, Any]:
    return {
        "agentId": record.agent_id,
        "run": record.run,
        "generation": record.generation,
        "epoch": record.epoch,
    }
