"""Notices to agents of this machine that were stored in the database, as notices here.

Only facts come down, each of a known kind; the words are made here. A text from another machine is
not even asked for: it could hold instructions for the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.context.ladder import ACTIONS, NONE
from ultramon.notices import texts
from ultramon.notices.message import Draft
from ultramon.share.allow_list import LEVELS, count, exit_facts, flag, number, one_of
from ultramon.state.history_ring import SOURCES
from ultramon.state.liveness import OUTCOMES
from ultramon.system import compact_json
from ultramon.system.ids import is_agent_id
from ultramon.system.timestamps import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.local.backend import LocalBackend
    from ultramon.backends.postgres.store.mirror import Mirror, WaitingNotice

    Take = Any

BATCH = 50
_KINDS = ("level", "epoch", texts.HANDOFF, *texts.LIFE.values())
_REASONS = ("compaction", "clear", "fall", "handoff", "lost")
_COUNTS = (
    "generation", "epoch", "tokens", "contextLimit", "tokensBefore", "tokensAfter",
    "tasksCompleted", "tasksTotal", "completed", "interrupted", "remaining",
)  # fmt: skip


def _time(value: object) -> str | None:
    at = parse_time(value)
    return None if at is None else format_time(at)


_TAKEN: dict[str, Take] = {
    **dict.fromkeys(_COUNTS, count),
    "usageRatio": number,
    "level": one_of(LEVELS),
    "previousLevel": one_of(LEVELS),
    "action": one_of(ACTIONS, NONE),
    "tokensSource": one_of(SOURCES),
    "reason": one_of(_REASONS),
    "outcome": one_of(OUTCOMES),
    "measuredAt": _time,
    "lastHeartbeat": _time,
    "isLowerBound": flag,
    "roundPercent": flag,
    "exit": lambda value: exit_facts(value, None),
    "successorId": lambda value: value if is_agent_id(value) else None,
}
"""What of the facts of a notice is taken over, each value as the function returns it."""


def facts_of(notice: WaitingNotice) -> dict[str, Any] | None:
    """Return the facts of a notice, as far as they are known ones; None where it is none."""
    try:
        given = compact_json.loads(notice.facts)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or given.get("kind") not in _KINDS:
        return None
    # A notice is about its sender, the child that is registered.
    if not is_agent_id(notice.sender) or given.get("agentId") != notice.sender:
        return None
    facts: dict[str, Any] = {"kind": given["kind"], "agentId": notice.sender, "outcome": None}
    for name, take in _TAKEN.items():
        if name in given:
            facts[name] = take(given[name])
    return facts


def draft_of(notice: WaitingNotice, recipient: str, now: float) -> Draft | None:
    """Return the message that a notice becomes here; None for what is no notice.

    Args:
        notice: As the database has it.
        recipient: The id of the recipient here.
        now: Epoch seconds.
    """
    facts = facts_of(notice)
    if facts is None:
        return None
    text = texts.render(facts, recipient, name=notice.sender, now=now)
    if text is None:
        return None
    return Draft(
        recipient,
        text,
        sender=notice.sender,
        category=texts.category_of(facts),
        delivery=texts.delivery_of(facts),
        # Stored here, and not yet deleted there, it comes once more after a kill.
        dedupe_key=f"share {notice.id}",
        facts=facts,
    )


def fetch(mirror: Mirror, backend: LocalBackend, own_ids: Mapping[str, str], now: float) -> int:
    """Take the notices that wait in the database over into the queue of this machine.

    Args:
        mirror: Of this machine.
        backend: The state directory.
        own_ids: The agents here, by their id in the database.
        now: Epoch seconds.

    Returns:
        How many were taken over.

    Raises:
        StateError: The database or this machine's disk refused.
    """
    taken, done = 0, []
    for notice in mirror.notices(BATCH):
        own = own_ids.get(notice.recipient)
        draft = None if own is None else draft_of(notice, own, now)
        done.append(notice.id)
        if draft is None:
            continue
        if (draft.facts or {}).get("kind") == "epoch":
            # What the window said before is stale; in the database it is cancelled already.
            backend.queue.cancel_messages_from(notice.sender, texts.CONTEXT)
        backend.queue.queue_message(draft, now=now)
        taken += 1
    if done:
        mirror.forget_notices(done)
    return taken
