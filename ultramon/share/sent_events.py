"""What of an event may leave this machine: by its type, every member of it is in one list here.

As in `ultramon.share.allow_list`, what is in no list is not sent, and a test names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.context.ladder import ACTIONS, NONE
from ultramon.share.allow_list import (
    OTHER,
    PHASES,
    View,
    count,
    flag,
    level,
    number,
    one_of,
)
from ultramon.state.event_keys import event_key
from ultramon.state.history_ring import SOURCES
from ultramon.state.liveness import OUTCOMES
from ultramon.system.timestamps import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.share.identity import Identity

    Send = Callable[[Any, View], Any]

_EPOCH_REASONS = ("compaction", "clear", "fall", "handoff")
_EXPIRED = "grace ran out"
_NOTICED_BY = ("agent", "fleet", "server", "queue")
_LIVENESS = ("alive", "stale", "lost", "ended", *PHASES)


def _time(value: object, _: View) -> str | None:
    at = parse_time(value)
    return None if at is None else format_time(at)


def _source(value: object, view: View) -> str:
    """Return what noticed an event: its kind, and of an agent the opaque id."""
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "agent" and name:
        return f"agent:{view.identity.agent_id(name)}"
    return kind if kind in _NOTICED_BY else ""


BASE: dict[str, Send] = {
    "eventId": lambda value, view: view.identity.event_id(str(value)),
    "agentId": lambda value, view: view.identity.agent_id(str(value)),
    "sessionId": lambda value, view: view.identity.agent_id(value) if value else "",
    "run": lambda value, view: view.identity.run(str(value)),
    "generation": lambda value, _: count(value) or 0,
    "epoch": lambda value, _: count(value) or 1,
    "source": _source,
    "occurredAt": lambda value, view: _time(value, view) or format_time(0.0),
    "n": lambda value, _: count(value) or 0,
}
"""Of every event that is sent, besides its type."""

_LIFE: dict[str, Send] = {"outcome": one_of(OUTCOMES), "reason": one_of((_EXPIRED,))}
_LEVEL: dict[str, Send] = {
    "level": lambda value, view: level(value, view) or "",
    "previousLevel": level,
    "action": one_of(ACTIONS, NONE),
    "usageRatio": lambda value, _: number(value) or 0.0,
    "tokens": count,
    "contextLimit": count,
    "tokensSource": one_of(SOURCES, SOURCES[0]),
    "levelFrom": number,
    "levelBelow": number,
}
_EPOCH: dict[str, Send] = {
    "reason": one_of(_EPOCH_REASONS, ""),
    "tokensBefore": lambda value, _: count(value) or 0,
    "tokensAfter": count,
}


def _no_handoff(_value: object, _view: View) -> dict[str, Any]:
    """Return an empty record in the place of a handoff: that there is one is all that is sent."""
    return {}


SENT_EVENTS: dict[str, dict[str, Send]] = {
    "context_threshold_reached": _LEVEL,
    "context_relaxed": _LEVEL,
    "context_epoch_started": _EPOCH,
    "handoff_ready": {"handoff": _no_handoff},
    "checkpoint_stored": {"handoff": _no_handoff},
    "agent_started": _LIFE,
    "agent_stopped": _LIFE,
    "agent_refused": _LIFE,
    "agent_stale": _LIFE,
    "agent_recovered": _LIFE | {"previous": one_of(_LIVENESS)},
    "agent_lost": _LIFE,
    "agent_expired": _LIFE,
    "return_requested": _LIFE | {"deadlineAt": _time},
    "return_enforced": {
        "reason": lambda _value, _view: "",
        "checkpoint": lambda _value, _view: None,
        "dryRun": flag,
    },
}
"""By type of event, what is sent besides `BASE`."""
MEMBERS_NEVER_SENT = frozenset(
    (
        "endedWith",  # the text of an error may be in it
        "exit",
    )
)
NEVER_SENT_EVENTS = frozenset(
    (
        "agent_assigned",  # items are a person's text, as are steps and their results
        "step_completed",
        "items_added",
        "items_claimed",
        "items_verified",
        "items_rejected",
        "items_set_aside",
        "items_reopened",
        "context_spawned",  # processes of this machine
        "context_closed",
        "context_alert",  # about a project's directory and a command in it
        "plan_threshold_reached",  # about an account or a budget of a person, not an agent
        "budget_threshold_reached",
        "audit",  # who tried what on a server
        "dead_letter",  # about a message
    )
)
"""Types that no choice sends."""


def redact_event(
    event: Mapping[str, Any], identity: Identity, levels: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return what of an event may leave this machine.

    Args:
        event: As the journal has it.
        identity: Of this machine.
        levels: The names of its agent's levels, as `level_names` returns them; empty = unknown.

    Returns:
        None for an event that is not sent.
    """
    kind = event["type"]
    members = SENT_EVENTS.get(kind)
    if members is None:
        return None
    view = View(identity, levels)
    sent: dict[str, Any] = {"type": kind}
    for name, send in (BASE | members).items():
        sent[name] = send(event.get(name), view)
    if sent.get("level") == OTHER:
        # Several levels have this name: of two such events one would be taken for the other.
        sent["key"] = f"{event_key(sent)}/{identity.event_id(event_key(dict(event)))}"
    return sent
