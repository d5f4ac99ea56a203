"""Events of the journal as a fleet reads them: members by attribute, beside the JSON of each."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, cast

from pydantic import ValidationError

from ultramon.handoff import HandoffRecord
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("ultramon.fleet")


class Exit(TypedDict, total=False):
    """How a process or its agent ended, as far as it is known: the ``exit`` of an event.

    Attributes:
        returncode: As `subprocess.Popen.returncode`.
        signal: The signal that ended it, by name.
        outOfMemory: Whether the kernel ended it for want of memory.
        error: The exception that ended the agent.
        message: What a client says about the end.
        statusCode: The HTTP status with which a provider refused a request.
        reason: Why it refused, in its words.
    """

    returncode: int
    signal: str
    outOfMemory: bool
    error: str
    message: str
    statusCode: int
    reason: str


class ProcessFacts(TypedDict):
    """The facts by which others find a process of a machine, and know that it is the one.

    Attributes:
        processGroup: The number of the group that it leads; None = it leads none.
    """

    pid: int
    pidStartedAt: str | None
    bootId: str
    hostname: str
    processGroup: NotRequired[int | None]


@dataclass(frozen=True, slots=True)
class Closing:
    """The facts of the event that closes a context; see `ultramon.state.events.CloseEvent`."""

    reason: str
    died: bool
    killed: bool
    progress: bool
    begun: list[str]
    charged: list[str]
    killed_outside: list[str]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Closing:
        """Read the facts of an event."""
        # "blamed" is the stored name of `charged`: journals that are there have it.
        return cls(
            facts["reason"],
            facts["died"],
            facts["killed"],
            facts["progress"],
            facts["begun"],
            facts["blamed"],
            facts.get("killedOutside", []),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the facts as an event holds them."""
        return {
            "reason": self.reason,
            "died": self.died,
            "killed": self.killed,
            "progress": self.progress,
            "begun": self.begun,
            "blamed": self.charged,
            "killedOutside": self.killed_outside,
        }


class JournalEvent(NamedTuple):
    """One event; a member that its kind lacks is empty or None.

    Attributes:
        json: All of it, as it is stored.
        kind: Its type.
        occurred_at: As the journal says it.
        handoff: With ``agent_assigned``, ``handoff_ready`` and ``checkpoint_stored``; None for one
            that is no valid record.
        final: Of its items those that no other context is to try.
        exit: None = the event says nothing of it; empty = how is not known.
        is_void: With ``agent_lost``: whether it holds for an agent that never started, alone.
        is_made: With ``handoff_ready``: whether a fleet made it of what an agent left out, or
            offers it again.
    """

    json: dict[str, Any]
    event_id: str
    kind: str
    agent_id: str
    generation: int
    epoch: int
    n: int
    source: str
    occurred_at: str
    reason: str | None
    outcome: str | None
    action: str | None
    supervisor: str | None
    items: list[str]
    reasons: dict[str, str]
    final: list[str]
    handoff: HandoffRecord | None
    exit: Exit | None
    is_void: bool
    is_made: bool

    @classmethod
    def of(cls, json: dict[str, Any]) -> JournalEvent:
        """Read an event, as a store returned it."""
        get = json.get
        return cls(
            json=json,
            event_id=get("eventId", ""),
            kind=json["type"],
            agent_id=json["agentId"],
            generation=json["generation"],
            epoch=json["epoch"],
            n=get("n", 0),
            source=get("source", ""),
            occurred_at=json["occurredAt"],
            reason=get("reason"),
            outcome=get("outcome"),
            action=get("action"),
            supervisor=get("supervisor"),
            items=get("items") or [],
            reasons=get("reasons") or {},
            final=get("final") or [],
            handoff=_handoff_in(json) if get("handoff") else None,
            exit=cast("Exit", get("exit") or {}) if "exit" in json else None,
            is_void=bool(get("void")),
            is_made=bool(get("endedWith")) or "releasedFrom" in json,
        )

    @property
    def at(self) -> float:
        """When it happened, epoch seconds."""
        return parse_time(self.occurred_at) or 0.0

    @property
    def process(self) -> ProcessFacts:
        """The process, with ``context_spawned``."""
        return cast("ProcessFacts", self.json)

    @property
    def work(self) -> list[str]:
        """The items of an assignment: given by name, or by a handoff that leaves them."""
        return self.items or ([] if self.handoff is None else self.handoff.left)


def _handoff_in(json: dict[str, Any]) -> HandoffRecord | None:
    try:
        return HandoffRecord.model_validate(json["handoff"])
    except ValidationError as error:
        _log.warning("run %s: a handoff is skipped, it is not valid: %s", json["run"], error)
        return None
